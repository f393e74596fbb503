# Each target is one check or build. .ci/run, the CI script, runs `check`, `docs`, and the default and cluster tests.
PYTHON ?= .venv/bin/python

.PHONY: check docs format test test-all
check:  ## check lint, format and types without changing files
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

docs:  ## regenerate the reference, and build the documentation in site/ (needs `pip install -e '.[docs]'`)
	$(PYTHON) -m docs._site.generated
	$(PYTHON) -m sphinx -W --keep-going -q -E docs site

format:  ## fix lint and format automatically
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

test:  ## run the tests, without slow ones
	$(PYTHON) -m pytest

test-all:  ## run all tests, including slow tests, cluster tests and fault injection
	$(PYTHON) -m pytest -m "not cluster and not faults"
	$(PYTHON) -m pytest -n 0 -m cluster
	$(PYTHON) -m pytest -n 0 -m faults
