# One command a check; CI runs the same (see .ci/run).
PYTHON ?= .venv/bin/python

.PHONY: check docs format test test-all
check:  ## lint, format and types, without changing a file
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

docs:  ## the documentation as a site, in site/; warnings are errors
	$(PYTHON) -m sphinx -W --keep-going -q -E docs site

format:  ## mend what can be mended mechanically
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test:  ## the suite, without what is long
	$(PYTHON) -m pytest

test-all:  ## everything: the long forms too, whole clusters, and every fault
	$(PYTHON) -m pytest -m "not cluster and not faults"
	$(PYTHON) -m pytest -n 0 -m cluster
	$(PYTHON) -m pytest -n 0 -m faults
