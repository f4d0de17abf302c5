# `make demo` and `make test` work on a fresh clone; both re-use .venv while its inputs are unchanged.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint soak docs clean

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,recipes]"
	touch $@

demo: $(READY)
	$(BIN)/python examples/quadruped_demo.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

test: lint
	@sh scripts/chromium.sh
	$(BIN)/pytest -n 2 --dist worksteal

soak: $(READY)
	@sh scripts/chromium.sh
	LEAPP_SOAK=1 $(BIN)/pytest -n 2 --dist worksteal

docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python scripts/api_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) build dist site
