# Everything a contributor runs. `make help` lists it.
#
# Without PYTHON, the first call makes .venv and installs into it what the target needs; later calls
# reuse it. With PYTHON=/path/to/python, that environment is used as it is: the package is built in
# place, nothing is downloaded and nothing is installed.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

BOOTSTRAP_PYTHON ?= python3
PYTEST_ARGS ?=
SUITE ?= auto
SAVE ?=
CELLS ?=
KEEP ?=
REVISION ?=
ARGS ?=
SANITIZE ?= address,undefined

ifdef PYTHON
  PY := $(PYTHON)
else
  PY := .venv/bin/python
  # Each with what it needs besides: to build and run, to test and lint, to make the documentation.
  READY := .venv/ready
  DEV_READY := .venv/dev-ready
  DOCS_READY := .venv/docs-ready
  # Images often set it: every process would compile torch's modules anew, a third of what
  # `import torch` takes and half of what the imports of torch.compile take.
  unexport PYTHONDONTWRITEBYTECODE
endif
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))

say = @echo "==> $(1)"
# Modules are compiled when they are first imported, as most never are; quiet in a pipe or a file.
PIP_INSTALL = .venv/bin/python -m pip install --no-compile $$([ -t 1 ] || echo --quiet)
CPU_TORCH := https://download.pytorch.org/whl/cpu

.PHONY: help
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24
	@echo
	@echo '  PYTHON=python3        use that environment; build in place, download and install nothing'
	@echo '  SPARSE_AUTOTUNE_CUDA=0/1   no CUDA / CUDA for every GPU, or fail (else for the GPU here)'

.venv/ready: pyproject.toml
	@$(BOOTSTRAP_PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 10) else
	"sparse_autotune needs Python >= 3.10; %s is %d.%d" % (sys.executable, v[0], v[1]))'
	.venv/bin/python -c 'import pip' 2>/dev/null || $(BOOTSTRAP_PYTHON) -m venv .venv
	trap 'echo "No network? PYTHON=python3 uses an environment with torch, downloads nothing" >&2' ERR
	$(PIP_INSTALL) 'pip>=25.1'
	if found=$$(.venv/bin/python build_gpu.py) || [ "$${SPARSE_AUTOTUNE_CUDA:-}" = 1 ]; then
	  echo "==> Installing PyTorch with CUDA into .venv: some 3 GB to download, once ($$found)"
	else
	  echo "==> Installing PyTorch for CPUs into .venv: some 250 MB to download, once ($$found)"
	  $(PIP_INSTALL) --retries 0 --timeout 15 --index-url $(CPU_TORCH) torch 2>/dev/null ||
	  echo '==> No answer from $(CPU_TORCH): PyPI has it with CUDA, some 3 GB'
	fi
	$(PIP_INSTALL) --group demo
	missing=$$(.venv/bin/python -c 'import build_cuda; print(*build_cuda.missing_toolkit())')
	if [ -n "$$missing" ]; then
	  echo "==> Installing nvcc into .venv: some 120 MB to download, once ($$missing)"
	  $(PIP_INSTALL) "$$missing"
	fi
	touch $@

.venv/dev-ready: .venv/ready
	@echo '==> Installing what tests and lint need into .venv'
	$(PIP_INSTALL) --group dev
	touch $@

.venv/docs-ready: .venv/dev-ready
	@echo '==> Installing what the documentation is built with into .venv'
	$(PIP_INSTALL) --group docs
	touch $@

test bench bench-gpu bench-training soak random-problems gpu-check sanitize lint format: $(DEV_READY)

# Kernels for GPUs that are not here would only take time. A wheel is for other machines, too: where
# nvcc is, it must not lack them because of the torch that happens to be here.
build sanitize: export SPARSE_AUTOTUNE_CUDA ?= native
wheel: export SPARSE_AUTOTUNE_CUDA ?= $(if $(shell command -v nvcc),1)

.PHONY: build
build: $(READY)  ## build the extension in place (incremental)
	$(call say,Building sparse_autotune in place with $(PY))
	$(PY) setup.py --quiet build_ext --inplace
	$(PY) -c 'import sparse_autotune; sparse_autotune.show_config()'

.PHONY: demo
demo: build  ## the main job: race, cache, comparison with the peers
	$(call say,Running the demo)
	$(PY) examples/demo.py

.PHONY: aoti-example
aoti-example: build  ## an AOTInductor package, and a C++ program without Python that runs it
	$(call say,Making the package)
	$(PY) examples/aoti/export.py build/aoti
	$(call say,Compiling and running the program)
	PYTHON=$(PY) examples/aoti/build.sh build/aoti/program
	SPARSE_AUTOTUNE_BUNDLE=build/aoti/bundle build/aoti/program \
	  python/sparse_autotune/libsparse_autotune.so build/aoti/model.pt2 build/aoti/expected.pt

.PHONY: docs
docs: $(DOCS_READY) build  ## the documentation as HTML, build/docs/index.html; warnings are errors
	$(call say,Building the documentation)
	$(PY) -m sphinx --quiet -W --keep-going -d build/doctrees docs build/docs

.PHONY: notebook
notebook: $(DOCS_READY) build  ## run examples/quickstart.ipynb and keep its outputs
	$(call say,Running the notebook)
	export SPARSE_AUTOTUNE_CACHE_DIR=$$(mktemp -d) TORCH_LOGS=-torch.utils.cpp_extension
	$(PY) -c 'from nbclient.cli import main; main()' --inplace examples/quickstart.ipynb
	sed -i "s|$$SPARSE_AUTOTUNE_CACHE_DIR|~/.cache/sparse_autotune|" examples/quickstart.ipynb
	rm -r "$$SPARSE_AUTOTUNE_CACHE_DIR"

.PHONY: native
native: $(READY)  ## library without PyTorch, harness, C++ example, Rust crates; CUDA=ON, OBJECTS=
	$(call say,Building the C interface; the harness; the C++ example)
	cmake -S . -B build/native -DSPARSE_AUTOTUNE_CUDA=$(or $(CUDA),OFF) -DSPARSE_AUTOTUNE_FUZZ=ON \
	  -DSPARSE_AUTOTUNE_OBJECTS="$(abspath $(OBJECTS))" \
	  -DPython3_EXECUTABLE="$$(command -v $(PY))" $(if $(shell command -v ninja),-G Ninja) >/dev/null
	cmake --build build/native --parallel $(or $(MAX_JOBS),$(shell nproc))
	cmake --install build/native --prefix build/native/prefix >/dev/null
	cmake -S examples/cpp -B build/native/example \
	  -DCMAKE_PREFIX_PATH="$(CURDIR)/build/native/prefix" >/dev/null
	cmake --build build/native/example
	if command -v cargo >/dev/null; then
	  echo '==> Testing the Rust crates'
	  export SPARSE_AUTOTUNE_LIB_DIR="$(CURDIR)/build/native/prefix/lib"
	  cd rust && CARGO_TARGET_DIR=../build/rust cargo test --offline --quiet
	  CARGO_TARGET_DIR=../build/rust cargo build --offline --quiet --examples
	else
	  echo '==> LEFT OUT: the Rust crates; no cargo was found on PATH'
	fi

comma := ,
# Its name gets into -Wl,-rpath, where a comma ends an argument.
FUZZ_FOLDER = build/fuzz-$(subst $(comma),-,$(SANITIZE))
.PHONY: fuzz
fuzz: $(READY)  ## hostile calls of the C interface; SANITIZE=thread, DURATION=60, SEED=
	@echo "==> Hostile calls of the C interface under $(SANITIZE)"
	cmake -S . -B $(FUZZ_FOLDER) -DSPARSE_AUTOTUNE_CUDA=OFF -DSPARSE_AUTOTUNE_FUZZ=ON \
	  -DSPARSE_AUTOTUNE_HARNESS=OFF -DSPARSE_AUTOTUNE_SANITIZE="$(SANITIZE)" \
	  -DCMAKE_BUILD_TYPE=Sanitized -DPython3_EXECUTABLE="$$(command -v $(PY))" \
	  $(if $(shell command -v ninja),-G Ninja) >/dev/null
	cmake --build $(FUZZ_FOLDER) --parallel $(or $(MAX_JOBS),$(shell nproc))
	$(FUZZ_FOLDER)/fuzz $(or $(SEED),1) $(or $(DURATION),60)

.PHONY: test
test: build  ## all tests (those marked gpu only where there is one), in a process a core; JOBS=
	$(call say,Running the tests)
	$(PY) -m pytest --jobs=$(or $(JOBS),auto) $(PYTEST_ARGS)

.PHONY: bench
bench: build  ## compare with the peers, GPU or CPU; SUITE=name, SAVE=path.json
	$(call say,Comparing with the peers (suite $(SUITE)))
	$(PY) benchmarks/run.py --suite $(SUITE) --save $(or $(SAVE),build/bench.json)

.PHONY: bench-gpu
bench-gpu: build  ## large blocks against the peers on a GPU; SUITE=, CELLS=, SAVE=, RENEW=1
	$(call say,Comparing with the peers on a GPU)
	$(PY) benchmarks/run.py --suite $(patsubst auto,gpu_large_blocks,$(SUITE)) \
	  --only '$(CELLS)' --save $(or $(SAVE),build/bench_gpu.json) $(if $(RENEW),--renew-peers)

.PHONY: bench-training
bench-training: build  ## forward, dX, dW and an MLP's step beside dense and stk; SAVE=, ARGS=
	$(call say,Comparing training with the dense layer and stk)
	$(PY) -m benchmarks.training --save $(or $(SAVE),build/bench_training.json) $(ARGS)

.PHONY: figures
figures: build  ## tables, pictures and dashboard anew from benchmarks/results/; KEEP=saved.json, REVISION=
	$(call say,Making tables and pictures from the results)
	$(if $(KEEP),$(PY) -m benchmarks.keep $(KEEP) $(if $(REVISION),--revision $(REVISION)))
	$(PY) -m benchmarks.figures

.PHONY: families
families: $(READY)  ## docs/kernels/families.md from saved races and, in a CUDA build, estimates
	$(call say,Writing what each family is worth)
	$(PY) -m benchmarks.evidence.estimates
	$(PY) -m benchmarks.evidence.page

.PHONY: soak
soak: build  ## eight threads use everything at once, all results checked; SEED=, MINUTES=8
	$(call say,Eight threads on streams of their own; memory has to stay flat)
	$(PY) tests/soak.py --seed $(or $(SEED),1) --minutes $(or $(MINUTES),8)

.PHONY: random-problems
random-problems: build  ## random problems for eight minutes, on from the last end; SEED=, JOBS=
	$(call say,Random problems against fp64 references)
	$(PY) tests/random_problems.py --seed $(or $(SEED),1) --jobs $(or $(JOBS),4) --seconds 470 \
	  --resume build/random_problems_$(or $(SEED),1).json

.PHONY: gpu-check
gpu-check: $(READY)  ## build, GPU tests and the short benchmark in one go, without network; JOBS=
	$(call say,Build; GPU tests; short benchmark)
	$(PY) -m benchmarks.gpu_check --save $(or $(SAVE),build/gpu_check.json) $(if $(JOBS),--jobs $(JOBS))

.PHONY: sanitize
sanitize: build  ## compute-sanitizer over one small ragged problem per configuration; FAMILIES=
	$(call say,compute-sanitizer: memcheck; racecheck; initcheck; synccheck)
	SPARSE_AUTOTUNE_ARRIVE_BY_LANES=1 $(PY) setup.py --quiet build_ext --build-lib build/by_lanes
	$(PY) tests/sanitize_problem.py --all-tools $(if $(FAMILIES),--families $(FAMILIES))

.PHONY: sanitize-native
sanitize-native:  ## the same over the C interface's entry points, after `make native CUDA=ON`; SECONDS=30
	@test -x build/native/device_calls ||
	{ echo 'make native CUDA=ON makes build/native/device_calls' >&2; exit 1; }
	# To initcheck what a vendor's kernel wrote is unwritten; racecheck loses track of launches in
	# graphs and of several threads; synccheck counts barriers (see tests/sanitize_problem.py).
	check() {
	  echo "==> compute-sanitizer: $$1"
	  compute-sanitizer --tool "$$1" --error-exitcode 99 --kernel-name kns=sparse_autotune "$${@:3}" \
	    build/native/device_calls $(or $(SECONDS),30) $$2
	}
	check memcheck 'chosen captured threads' --report-api-errors no
	check racecheck ''
	check initcheck 'captured threads'
	check synccheck 'chosen captured threads' --num-cuda-barriers 128

.PHONY: wheel
wheel: $(READY)  ## dist/: an sdist, and a wheel built from that sdist
	$(call say,Building the sdist and from it the wheel)
	$(PY) -c 'import build.__main__' 2>/dev/null ||
	{ echo '$(PY) has no module "build" (pip install build)' >&2; exit 1; }
	rm -rf dist
	$(PY) -m build --no-isolation --outdir dist
	ls -sh dist

.PHONY: wheel-check
wheel-check: wheel  ## install the wheel beside torch 2.10 and beside the newest; smoke tests
	@unset PYTHONPATH  # or pip takes the tree's own egg-info for an installed package
	for torch in 'torch==2.10.*' torch; do
	  echo "==> The wheel beside $$torch in a fresh environment"
	  rm -rf build/wheel-check
	  $(PY) -m venv build/wheel-check
	  build/wheel-check/bin/python -m pip install --quiet "$$torch" dist/*.whl
	  (cd build/wheel-check && bin/python ../../tests/wheel_smoke.py)
	done
	rm -rf build/wheel-check

.PHONY: lint
lint: $(READY)  ## ruff, clang-format and mypy, changing nothing
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(CLANG_FORMAT) --dry-run --Werror $(CPP_SOURCES)
	$(PY) -m mypy

.PHONY: format
format: $(READY)  ## ruff and clang-format, in place
	$(PY) -m ruff check --fix --quiet . || true
	$(PY) -m ruff format .
	$(CLANG_FORMAT) -i $(CPP_SOURCES)

CLANG_FORMAT = $(if $(PYTHON),clang-format,.venv/bin/clang-format)
CPP_SOURCES = $(shell find csrc harness include tests examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

.PHONY: clean
clean:  ## remove what was built, keep .venv
	rm -rf build dist python/*.egg-info python/sparse_autotune/*.so
