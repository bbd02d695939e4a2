# Targets: lint, test, example, bench. Nothing but Go is needed; PostgreSQL is found, or downloaded, by the tests.

SHELL   := /bin/bash
GO      ?= go
MODULES := . internal/pathtest _examples
export GOWORK := off

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The race detector needs cgo, and that a C compiler. CI must have both.
RACE := $(shell CGO_ENABLED=1 $(GO) env CC 2>/dev/null | xargs -r sh -c 'command -v "$$0" >/dev/null && echo -race')

.PHONY: lint test example bench tidy

lint:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	@for m in $(MODULES); do echo "lint $$m"; \
		$(GO) -C $$m mod tidy -diff && \
		$(GO) -C $$m vet ./... && \
		$(GO) -C $$m run $(STATICCHECK) ./... || exit 1; done

test:
	@if [ -z "$(RACE)" ]; then \
		if [ -n "$$CI" ]; then echo "no C compiler: CI requires -race" >&2; exit 1; fi; \
		echo "no C compiler found: the tests run without the race detector"; fi
	@for m in $(MODULES); do echo "test $$m"; \
		$(GO) -C $$m test $(RACE) -count=1 ./... || exit 1; done

example:
	$(GO) -C _examples run ./webhooks

bench:
	$(GO) run ./internal/bench

tidy:
	@for m in $(MODULES); do $(GO) -C $$m mod tidy || exit 1; done
