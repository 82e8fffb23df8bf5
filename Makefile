# Everything here works for an ordinary user when the parts are there; where
# something has to be installed it says so, and needs root (Debian 12).

GO      ?= go
BIN     := bin
# Flags of every release binary. fence links libseccomp statically (cgo);
# urfave_cli_no_docs leaves out a Markdown library that costs 0.4 ms a start.
TAGS    := osusergo,netgo,urfave_cli_no_docs
STATIC  := -s -w -linkmode external -extldflags "-static"
BUILDFLAGS := -trimpath -buildvcs=false
export DEBIAN_FRONTEND := noninteractive

.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort | expand -t 16

# Linked against musl, fence starts a fifth faster (docs/decisions/005).
# libseccomp.a is the distribution's; musl has no kernel headers of its own.
# Asked when the recipe runs: deps may have installed it.
comma      := ,
musl        = $(shell command -v musl-gcc)
FENCE_ENV   = $(if $(musl),CC=musl-gcc CGO_CFLAGS="-O2 -idirafter /usr/include -idirafter /usr/include/$(shell gcc -print-multiarch)" CGO_LDFLAGS=-L$(CURDIR)/$(BIN)/lib)
FENCE_TAGS  = $(TAGS)$(if $(musl),$(comma)musl)

build: deps ## the static binaries, into bin/
	@mkdir -p $(BIN)/lib
	@cp "$$(gcc -print-file-name=libseccomp.a)" $(BIN)/lib/
	CGO_ENABLED=1 $(FENCE_ENV) $(GO) build $(BUILDFLAGS) -tags $(FENCE_TAGS) -ldflags '$(STATIC)' -o $(BIN)/fence ./cmd/fence
	CGO_ENABLED=0 $(GO) build $(BUILDFLAGS) -tags $(TAGS) -ldflags '-s -w' -o $(BIN)/probe ./cmd/probe
	CGO_ENABLED=0 $(GO) build $(BUILDFLAGS) -tags $(TAGS) -ldflags '-s -w' -o $(BIN)/sifbuild ./cmd/sifbuild
	CGO_ENABLED=0 $(GO) build $(BUILDFLAGS) -tags $(TAGS) -ldflags '-s -w' -o $(BIN)/rollout ./cmd/rollout

deps:
	@test/deps

demo: build ## set up, and show what a container reaches without the fence and with it
	@test/demo

test: build ## set up, and run the tests (under 12 minutes on 2 cores)
	@test/run short

test-all: build ## as test, and the long parts: kernels, all faults
	@test/run all

test-kernels: build ## fence and probe on other kernels, under qemu
	@test/run kernels

bench: build ## figures beside the peers that are installed
	@test/bench/run
	@$(MAKE) --no-print-directory bench-rollout

bench-images: build ## how long images take, beside apptainer build
	@test/bench/images

bench-many: build ## 20, 60 and 200 different Dockerfiles on three bases: requests, bytes, disk, memory
	@test/bed/up users images bullseye
	$(GO) run ./test/bench/many -uid "$$(id -u fencer)" -gid "$$(id -g fencer)"

bench-rollout: build ## what a trial costs beyond its task's commands, beside a command of Apptainer's for each step
	@test/bed/up users images
	$(GO) run ./test/bench/rollout

bench-report: ## what a report of 1,000 trials costs, from the disk to a browser's screen
	$(GO) test ./pkg/page -run '^$$' -bench Report -benchtime 3x

bed: ## bring up the test bed: Apptainer, two users, images, a site's mounts
	@test/bed/up

fuzz: ## every fuzz target, FUZZTIME each (default 30s)
	@test/run fuzz

vet: ## gofmt, go vet, and a tidy go.mod
	@test/run vet

clean: ## remove what was built here
	rm -rf $(BIN)

.PHONY: help build deps demo test test-all test-kernels bench bench-images bench-many bench-rollout bench-report bed fuzz vet clean
