# The two commands are `make demo` and `make test`; README.md says what each does.
PY = .venv/bin/python
PYTEST = $(PY) -m pytest -n 2 --dist loadfile -q -m

.PHONY: help setup demo further deepspeed test slow check clean
help::
	@echo "make demo   all tasks on four workers here, side by side (sets up first)"
	@echo "make further  the tasks beyond the assignment, each beside task 1 (two minutes)"
	@echo "make deepspeed  install DeepSpeed, and train with its engine beside task 8's loop (two minutes)"
	@echo "make test   the tests (sets up first)"
	@echo "make check  the grader's checks of your work; of one task: make check TASK=task2a"
	@echo "make slow   the tests that take longer"
	@echo "make setup  only the environment in .venv"
	@echo "make clean  remove .venv and runs"

setup demo further deepspeed test slow check: export PYTHONUNBUFFERED = 1
setup:
	@./setup.sh

demo: setup
	@$(PY) -m experiments.demo

further: setup
	@$(PY) -m experiments further

deepspeed: setup
	@$(PY) -c "import sys, importlib.util as u; sys.exit(not u.find_spec('deepspeed'))" || { \
	echo "deepspeed: installing DeepSpeed, which needs no compiler here" && $(PY) -m pip --quiet \
	--disable-pip-version-check install --constraint .venv/constraints.txt --editable ".[deepspeed]"; }
	@$(PY) -m experiments deepspeed

test: setup
	@echo "test: running the tests (some minutes)"
	@$(PYTEST) "not slow"

check: setup
	@echo "check: running your tasks as graders do"
	@$(PY) -m pytest tests/grading -q -p no:cacheprovider $(if $(TASK),-k "$(TASK)")

slow: setup
	@echo "slow: running the tests that take longer"
	@$(PYTEST) slow

clean:
	rm -rf .venv runs

-include staff/staff.mk  # what instructors run besides; the students' handout has no staff/
