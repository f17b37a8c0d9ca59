# make demo | test | lint | live | bench | record | train-tiny | test-vllm
PYTHON ?= python3
VENV = .venv
RUN = $(VENV)/bin/python

.PHONY: demo test lint live bench record lint-train train-tiny test-vllm clean

$(VENV)/run: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/dev: $(VENV)/run requirements-dev.txt requirements-tools.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/local: $(VENV)/run requirements-local.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-local.txt
	touch $@

$(VENV)/train: $(VENV)/dev requirements-train.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-train.txt
	touch $@

demo: $(VENV)/run  ## the case study, offline: replays a recorded run
	$(RUN) orchestra_min.py --replay fixtures/runs/equinox

test: $(VENV)/dev  ## all tests; no network, no key, no GPU
	$(RUN) -m pytest

lint: $(VENV)/dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy orchestra_min.py orchestra orchestrators subagents tools

lint-train: $(VENV)/train  ## types of the training code need torch
	$(RUN) -m mypy da_grpo.py train_da_grpo.py training

QUESTION ?= What time is it in UTC when it is 7:49 AM on September 23 in Prague?
live: export ASKED = $(value QUESTION)
live: $(VENV)/run  ## your own endpoint: OPENAI_API_KEY, or OPENAI_BASE_URL; make live QUESTION="..." ARGS="--image ..."
	$(RUN) orchestra_min.py --question "$$ASKED" $(ARGS)

bench: $(VENV)/dev  ## the figures in the README
	$(RUN) benchmarks/overhead.py
	$(RUN) benchmarks/latency.py
	$(RUN) benchmarks/startup.py
	$(RUN) benchmarks/replays.py
	$(RUN) benchmarks/kills.py

record: $(VENV)/local  ## record the demo again; see fixtures/README.md
	$(RUN) fixtures/record.py

train-tiny: $(VENV)/train  ## a tiny model learns one template; fails where its reward does not rise (CPU, no server)
	OMP_NUM_THREADS=1 $(RUN) -m training.tiny --out runs/tiny

test-vllm: $(VENV)/train  ## a real vLLM server drives two steps: make test-vllm VLLM_PYTHON=... TRAIN_MODEL=...
	VLLM_PYTHON=$(VLLM_PYTHON) TRAIN_MODEL=$(TRAIN_MODEL) $(RUN) -m pytest -rs tests/training/test_vllm.py

clean:
	rm -rf $(VENV) runs

