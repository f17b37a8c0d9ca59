# make demo | demo-trained | test | test-sandbox | test-train | test-files | test-inspect | lint | lint-train | live | bench | record | cassettes | minigaia | results | record-results | test-cgroup | train-tiny | lab | test-vllm
PYTHON ?= python3
VENV = .venv
RUN = $(VENV)/bin/python
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check

.PHONY: demo demo-trained test test-sandbox test-train test-files test-inspect lint lint-train live bench record cassettes minigaia results record-results test-cgroup train-tiny lab test-vllm clean

NEW_ENOUGH = $(shell $(PYTHON) -c "import sys; print(sys.version_info >= (3, 11))")

$(VENV)/run: requirements.txt
	$(if $(filter True,$(NEW_ENOUGH)),,$(error needs Python 3.11 or newer))
	$(PYTHON) -m venv $(VENV)
	@echo "installing the packages of requirements.txt: up to a few minutes"
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/dev: $(VENV)/run pyproject.toml
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/local: $(VENV)/run pyproject.toml
	$(PIP) -e '.[local]'
	touch $@

$(VENV)/train: $(VENV)/dev
	$(PIP) -e '.[train-test]'
	touch $@

$(VENV)/files: $(VENV)/dev
	$(PIP) -e '.[files]'
	touch $@

$(VENV)/inspect: $(VENV)/run pyproject.toml
	$(PIP) -e '.[inspect,test]'
	touch $@

demo: $(VENV)/run  ## the case study, offline: replays a recorded run
	$(RUN) orchestra_min.py --replay fixtures/runs/equinox
	@echo "next: $(RUN) orchestra_min.py report fixtures/runs/equinox --out equinox.html"

demo-trained: $(VENV)/run  ## a main agent that DA-GRPO trained, offline: replays a recorded run, without torch
	$(RUN) orchestra_min.py --replay fixtures/runs/trained --method fixtures.trained.agent:Trained

test: $(VENV)/dev  ## all tests; no network, no key, no GPU. It says what it skips and why
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n 2 --dist worksteal

test-sandbox: $(VENV)/dev  ## the tests that need bubblewrap and git
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n 2 --dist worksteal -m sandbox

test-train: $(VENV)/train  ## the tests of training, with those that need torch
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n 2 --dist worksteal tests/training

test-files: $(VENV)/files  ## the tests of tables, documents and archives, with those of office documents
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -rs tests/tools/test_file.py tests/test_files.py

test-inspect: $(VENV)/inspect  ## the methods as a solver of Inspect, with the real library
	PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -rs tests/test_inspect.py

lint: $(VENV)/dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy -p orchestra -m orchestra_min --exclude orchestra/training/
	$(VENV)/bin/lint-imports --no-cache --no-logo

lint-train: $(VENV)/train  ## types of the training code need torch
	$(RUN) -m mypy -p orchestra.training -m train_da_grpo
	$(RUN) -m mypy -p fixtures.trained -p benchmarks.lab -p benchmarks.minigaia

QUESTION ?= What time is it in UTC when it is 7:49 AM on September 23 in Prague?
live: export ASKED = $(value QUESTION)
live: $(VENV)/run  ## your own endpoint: OPENAI_API_KEY, or OPENAI_BASE_URL; make live QUESTION="..." ARGS="clock.png"
	$(RUN) orchestra_min.py --question "$$ASKED" $(ARGS)

bench: $(VENV)/dev  ## the figures in docs/figures.md
	$(RUN) benchmarks/overhead.py
	$(RUN) benchmarks/sweep.py
	$(RUN) benchmarks/sweep.py marks
	$(RUN) benchmarks/latency.py
	$(RUN) benchmarks/startup.py
	$(RUN) benchmarks/replays.py
	$(RUN) benchmarks/kills.py
	$(RUN) benchmarks/sweep_kills.py
	$(RUN) benchmarks/interrupts.py

record: $(VENV)/local  ## record the fixture runs again; see fixtures/README.md
	$(RUN) fixtures/record.py

cassettes: $(VENV)/dev $(VENV)/local  ## record tests/cassettes/ again; needs what `make record` needs, and OPENAI_BASE_URL for another server
	$(RUN) -m pytest tests/test_http.py --record-cassettes

minigaia: $(VENV)/run  ## make fixtures/minigaia again; needs espeak-ng
	$(RUN) -m fixtures.make_minigaia

results: $(VENV)/run  ## unpack the sweeps of fixtures/results, replay every run offline and print fixtures/results/tables.txt
	$(RUN) -m fixtures.results

record-results: $(VENV)/local  ## record them, or what is missing; see fixtures/README.md; make record-results ARGS="--server 'COMMAND'"
	$(RUN) -m fixtures.results record $(ARGS)

test-cgroup: $(VENV)/dev  ## the cgroup of the sandbox in a kernel of its own; needs user-mode-linux
	tests/tools/kernel.sh

train-tiny: $(VENV)/train  ## a tiny model learns four decisions; fails where its reward does not rise (CPU, no server)
	TRAIN_TINY=1 OMP_NUM_THREADS=1 $(RUN) -m pytest tests/training/test_train.py -k tiny_model -s

lab: $(VENV)/train  ## when does a reward for each decision help? 1 hour of two cores; make lab ARGS=--quick: 6 minutes
	$(RUN) -m benchmarks.lab.arms $(ARGS)

test-vllm: $(VENV)/train  ## a real vLLM server drives two steps: make test-vllm VLLM_PYTHON=... TRAIN_MODEL=...
	VLLM_PYTHON=$(VLLM_PYTHON) TRAIN_MODEL=$(TRAIN_MODEL) $(RUN) -m pytest -rs tests/training/test_vllm.py

clean:
	rm -rf $(VENV) runs
