// Package servers gives a test the brokers' own servers.
//
// A server is that of its variable (KAFKA_URL, NATS_URL, AMQP_URL, REDIS_URL: URLs as _examples/broker takes them), or one that the
// test starts from what is installed: nats-server, redis-server and rabbitmq-server of Debian's packages, and Apache Kafka from the
// jars that "make kafka" fetches, with Java 17. It listens on 127.0.0.1, keeps its data below the directory for temporary files,
// and ends with the test, or with the test's process however that ends. Where there is neither, the test fails under CI, and is
// skipped elsewhere with the name of the variable.
package servers
