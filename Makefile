# Targets: lint, test, example, bench. Nothing but Go is needed; PostgreSQL is found, or downloaded, by the tests.

GO      ?= go
MODULES := . internal/pathtest _examples
export GOWORK := off

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The race detector needs cgo, and that a C compiler that works. CI must have one.
RACE = $(shell CGO_ENABLED=1 $(GO) test -race -run=none errors >/dev/null 2>&1 && echo -race)

.PHONY: lint test example bench tidy

lint:
	@test -z "$$(gofmt -l . | tee /dev/stderr)"
	@for m in $(MODULES); do echo "lint $$m"; \
		$(GO) -C $$m mod tidy -diff && \
		$(GO) -C $$m vet ./... && \
		$(GO) -C $$m run $(STATICCHECK) ./... || exit 1; done

test:
	@race="$(RACE)"; cgo=1; \
	if [ -z "$$race" ]; then \
		if [ -n "$$CI" ]; then echo "no C compiler that works: CI requires -race" >&2; exit 1; fi; \
		echo "no C compiler that works: the tests run without the race detector"; cgo=0; fi; \
	for m in $(MODULES); do echo "test $$m"; \
		CGO_ENABLED=$$cgo $(GO) -C $$m test $$race -count=1 ./... || exit 1; done

example:
	$(GO) -C _examples run ./webhooks

bench:
	$(GO) run ./internal/bench
	$(GO) -C internal/pathtest run ./bench

tidy:
	@for m in $(MODULES); do $(GO) -C $$m mod tidy || exit 1; done
