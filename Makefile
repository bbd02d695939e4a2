# Targets: lint, test, example, bench, chaos, up, down, kafka. Nothing but Go is needed; PostgreSQL is found, or downloaded, by the
# tests. The tests over other brokers use the servers that are installed, or those of "make up", or are skipped.

GO      ?= go
MODULES := . internal/pathtest _examples
export GOWORK := off

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# The race detector needs cgo, and that a C compiler that works. CI must have one.
RACE = $(shell CGO_ENABLED=1 $(GO) test -race -run=none errors >/dev/null 2>&1 && echo -race)

.PHONY: lint test example bench chaos tidy kafka up down

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
		CGO_ENABLED=$$cgo $(GO) -C $$m test $$race -count=1 -timeout 15m ./... || exit 1; done; \
	if [ -n "$$race" ]; then echo "test internal/pathtest, what is not for the race detector"; \
		$(GO) -C internal/pathtest test -count=1 -run TestKafkaKilledUnderLoad . || exit 1; fi

example:
	@for e in quickstart webhooks orders payments kill-it; do echo "example $$e"; \
		$(GO) -C _examples run ./$$e || exit 1; done

bench:
	$(GO) run ./internal/bench
	$(GO) -C internal/pathtest run ./bench

# The long form: more than 200 kills, 20 crashes of the database and 100,000 events. The short one is among the tests.
chaos:
	$(GO) -C internal/pathtest run ./chaos -for 15m -events 100000

tidy:
	@for m in $(MODULES); do $(GO) -C $$m mod tidy || exit 1; done

# Apache Kafka's jars, for the tests, by Maven: they start it with Java 17.
kafka:
	mvn -B -q -f internal/pathtest/kafka/pom.xml package

# The servers in containers. The tests use them where the variables are exported.
up:
	docker compose up -d --wait
	@echo "export DATABASE_URL='postgres://postgres:postgres@127.0.0.1:5432/postgres?sslmode=disable'"
	@echo "export KAFKA_URL=kafka://127.0.0.1:9092 NATS_URL=nats://127.0.0.1:4222 AMQP_URL=amqp://127.0.0.1:5672 REDIS_URL=redis://127.0.0.1:6379"

down:
	docker compose down --volumes
