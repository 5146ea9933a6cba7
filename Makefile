# SPDX-License-Identifier: GPL-2.0
#
# Makefile - everything that one does with this tree; `make help` lists it.
# What is built goes to out/, what is downloaded to .cache/.

# Kernel releases to build modules for
KERNELS ?= $(shell scripts/kernel-releases)
# Processes that a build may use
JOBS ?= 2

# Kind of host that demo and series boot, and demo-migration two of; an environment's HOST means something else
HOST = kvm
HOSTS := kvm xen
# CPUs of each guest that the demos and series boot: with more than one, guests take turns on the host's two
GUEST_CPUS = 1

export JOBS
unexport HOST

.DEFAULT_GOAL := help
.NOTPARALLEL:

##@ Build

.PHONY: all
all: modules host ## Build everything

.PHONY: deps
deps: ## Install the Debian packages that are missing
	@scripts/install-deps

.PHONY: modules
modules: deps ## Build the kernel modules for each of KERNELS
	@scripts/build-modules $(KERNELS)

.PHONY: check-kernels
check-kernels: deps ## Build the modules for every kernel that they are for, and print a table
	@KERNELS="$(KERNELS)" scripts/check-kernels

.PHONY: host
host: deps ## Build vmloopd (the agent) and vmloop (the command) into out/bin
	@scripts/build-host

.PHONY: debug-kernel
debug-kernel: deps ## Build a kernel with KASAN, lockdep and kmemleak for the lab
	@./vmlab build-kernel debug

.PHONY: deb
deb: ## Build Debian packages into out/deb
	@scripts/install-deps scripts/deps.txt scripts/deps-deb.txt
	@scripts/build-deb

.PHONY: deb-host
deb-host: ## The same for hosts only: the agent and the command
	@scripts/install-deps scripts/deps.txt scripts/deps-deb.txt
	@scripts/build-deb --arch

##@ Test

.PHONY: check
check: deps ## Format, lint, unit tests: under 3 minutes, boots no lab
	@KERNELS="$(KERNELS)" scripts/run-tests check

.PHONY: test
test: deps ## The main jobs of everything: check, and guests on a KVM and a Xen host
	@KERNELS="$(KERNELS)" scripts/run-tests check main

.PHONY: test-all
test-all: deps ## All tests there are, for hours; it says for how long. PART=2/4: a quarter
	@KERNELS="$(KERNELS)" scripts/run-tests $(if $(PART),--part $(PART)) check ring all

.PHONY: test-ring
test-ring: deps ## Stress, sanitizers, mutants and a minute of fuzzing for the ring
	@scripts/run-tests ring

.PHONY: test-debug
test-debug: debug-kernel host ## The guest tests on the debug kernel
	@KERNELS="$(KERNELS)" scripts/run-tests debug

.PHONY: check-dkms
check-dkms: ## Build the modules by DKMS, in a tree of its own
	@scripts/install-deps scripts/deps.txt scripts/deps-deb.txt
	@scripts/check-dkms $(KERNELS)

##@ Use

.PHONY: known-host
known-host:
	@$(if $(filter $(HOSTS),$(HOST)),:,$(error no host of kind '$(HOST)': choose HOST=kvm or HOST=xen))

.PHONY: demo
demo: known-host modules host ## Two guests talk, with vmloop and without
	@bench/run demo --host $(HOST) --guest-cpus $(GUEST_CPUS)

.PHONY: series
series: known-host modules host ## Throughput over the size of messages, and of rings
	@bench/run series --host $(HOST) --guest-cpus $(GUEST_CPUS)

.PHONY: series-stream
series-stream: known-host modules host ## Connections by lanes, over the size of messages, blocks, files and rings
	@$(MAKE) -s -C bench/streams talk
	@bench/run streams --host $(HOST) --guest-cpus $(GUEST_CPUS)

.PHONY: demo-migration
demo-migration: known-host modules host ## A guest moves between two hosts
	@bench/run migration --host $(HOST) --guest-cpus $(GUEST_CPUS)

.PHONY: bench-ring
bench-ring: deps ## The ring between two cores, against memcpy
	@$(MAKE) -s -C bench/ring run

.PHONY: bench-lanes
bench-lanes: deps ## What finding the lane that has news costs, by the number of lanes
	@$(MAKE) -s -C bench/lanes run

.PHONY: bench-agent
bench-agent: deps ## The agent with up to 1,000 pretended guests: memory, arrivals, CPU
	@bench/run agent

.PHONY: suites
suites: modules ## Other projects' own tests, with the stream path and without
	@scripts/install-deps scripts/deps.txt scripts/deps-suites.txt
	@suites/run

##@ Clean

.PHONY: clean
clean: ## Remove what was built
	rm -rf out/build out/modules out/bin out/bench out/ring out/lanes out/test out/deb out/dkms
	rm -rf host/target

.PHONY: distclean
distclean: ## Remove everything that is not in git's care
	rm -rf out .cache host/target
	find . -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help
help: ## This list
	@echo "usage: make [KERNELS=\"RELEASE...\"] [JOBS=$(JOBS)] [HOST=kvm|xen] [GUEST_CPUS=N] [PART=K/N] TARGET..."
	@awk -F ':.*## ' ' \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 } \
	' $(MAKEFILE_LIST)
	@echo
	@echo "HOST is the kind of host that the demos and series boot: $(HOST), with guests of GUEST_CPUS CPUs: $(GUEST_CPUS)"
	@echo "KERNELS is $(or $(KERNELS),empty: no headers are installed)"
