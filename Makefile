# `make demo` and `make test` work on a fresh clone; both re-use .venv while its inputs are unchanged.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# The tests start some hundred interpreters. Without files of bytecode each of them would compile the library again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo browser test test-matrix test-scale test-clients lint soak docs clean

# The servers that tests/scale starts. Each has packages that do not agree with the others, hence a venv of its own, made
# from tests/scale/<name>/requirements.txt.
SCALE := triton ray
# The Python stub of pytriton's server is linked with the system's own libpython.
PYTHON_triton ?= /usr/bin/python3
.PHONY: $(SCALE:%=test-%)

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

# Chromium, which the tests of the page drive, from the system's packages. No other target installs system packages.
browser:
	sh scripts/chromium.sh

# The tests of the page fail without it; said once before the tests, it is seen.
BROWSER := @command -v chromium >/dev/null && command -v chromedriver >/dev/null \
  || echo "Chromium is missing, so the tests of the page will fail: run make browser" >&2

test: lint
	$(BROWSER)
	$(BIN)/pytest -n 2 --dist worksteal

# Other versions of Python, torch and NumPy, each in a venv of its own: make test-matrix CELLS="3.11-2.7 3.13-newest".
test-matrix:
	$(PYTHON) scripts/matrix.py $(CELLS)

test-scale: $(SCALE:%=test-%)

# Each file in a process of its own: servers and clusters do not start twice in one.
$(SCALE:%=test-%): test-%: .venv-%/.ready
	for file in tests/scale/$*/test_*.py; do .venv-$*/bin/python -m pytest $$file || exit 1; done

.venv-%/.ready: pyproject.toml tests/scale/%/requirements.txt
	test -x .venv-$*/bin/python || $(or $(PYTHON_$*),$(PYTHON)) -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check -r tests/scale/$*/requirements.txt -e ".[export]"
	touch $@

# The bundles of leapp 0.7.2 that tests/test_interop.py runs, and docs/interop.md. Needed when tests/interop/patterns.py changes.
pin-peer: $(READY)
	$(BIN)/python -m tests.interop.table --pin
.PHONY: pin-peer

# Isaac Lab, Jupyter and JAX, in the versions that their users have.
test-clients:
	sh scripts/clients.sh
	.venv-clients/bin/python -m pytest tests/clients

# The C++ runtime: what it stands on is fetched once, the programs of cpp/tests are built twice, the second time with sanitizers.
CPP := build/cpp

$(CPP)/.deps: scripts/cpp_deps.sh $(READY)
	sh scripts/cpp_deps.sh $(CPP)/deps $(BIN)/python
	touch $@

build-cpp: $(CPP)/.deps
	cmake -S cpp -B $(CPP)/plain -DLEAPP_BUILD_TESTS=ON -DCMAKE_BUILD_TYPE=Release $(CPP_FLAGS)
	cmake -S cpp -B $(CPP)/sanitized -DLEAPP_BUILD_TESTS=ON -DLEAPP_SANITIZE=ON -DCMAKE_BUILD_TYPE=Debug $(CPP_FLAGS)
	cmake --build $(CPP)/plain -j 2
	cmake --build $(CPP)/sanitized -j 2
.PHONY: build-cpp test-cpp bench-cpp
CPP_FLAGS = -DONNXRUNTIME_ROOT=$(CURDIR)/$(CPP)/deps/onnxruntime -DYAML_ROOT=$(CURDIR)/$(CPP)/deps/yaml/usr \
  -DOpenVINO_DIR=$(CURDIR)/$(CPP)/deps/openvino/cmake -DOPENSSL_ROOT_DIR=$(CURDIR)/$(CPP)/deps/openssl

test-cpp: build-cpp
	$(BIN)/pytest -n 2 --dist loadscope tests/cpp/test_*.py

# libFuzzer over the parsers of descriptions, tensors and models. Needs clang++ (apt install clang).
SECONDS_OF_FUZZING ?= 3600
fuzz-cpp: $(CPP)/.deps
	mkdir -p $(CPP)/corpus
	$(CLANGXX) -std=c++17 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -DLEAPP_LIBFUZZER \
	  -I cpp/include -I $(CPP)/deps/yaml/usr/include cpp/tests/mutate.cpp -o $(CPP)/fuzz -lyaml
	$(BIN)/python examples/quadruped_demo.py $(CPP)/fuzz-seeds > /dev/null
	$(CPP)/fuzz $(CPP)/corpus $(CPP)/fuzz-seeds/quadruped -max_total_time=$(SECONDS_OF_FUZZING) -max_len=65536 -timeout=10 -verbosity=0
CLANGXX ?= clang++
.PHONY: fuzz-cpp

bench-cpp: build-cpp demo
	$(CPP)/plain/tests/bench exports/quadruped

soak: $(READY)
	$(BROWSER)
	LEAPP_SOAK=1 $(BIN)/pytest -n 2 --dist worksteal
	$(MAKE) fuzz-cpp
	LEAPP_SOAK=1 $(MAKE) test-cpp

docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/python scripts/api_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf $(VENV) $(SCALE:%=.venv-%) .venv-clients .venv-matrix-* build dist site
