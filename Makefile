# One command a check; CI runs the same (see .ci/run).
PYTHON ?= .venv/bin/python

.PHONY: check format test
check:  ## lint, format and types, without changing a file
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

format:  ## mend what can be mended mechanically
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test:  ## the whole suite
	$(PYTHON) -m pytest
