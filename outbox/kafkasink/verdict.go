package kafkasink

import (
	"errors"

	"github.com/IBM/sarama"
)

// verdict is what an attempt's error means for the batch.
type verdict int

const (
	taken    verdict = iota
	later            // the same batch may be taken soon, or may have been taken
	anew             // the broker does not know this producer's state any more: as a new one, now
	refused          // for what one of its records is; nothing of it was stored
	hopeless         // for its topic's name
	failed           // trying again at once will not help
)

func verdictOn(err error) verdict {
	if err == nil {
		return taken
	}
	var code sarama.KError
	if !errors.As(err, &code) {
		var encoding sarama.PacketEncodingError
		var config sarama.ConfigurationError
		if errors.As(err, &encoding) || errors.As(err, &config) {
			return failed
		}
		return later // the network
	}
	switch code {
	case sarama.ErrNoError,
		sarama.ErrDuplicateSequenceNumber: // stored before
		return taken
	case sarama.ErrOutOfOrderSequenceNumber,
		sarama.ErrInvalidProducerEpoch,
		sarama.ErrInvalidProducerIDMapping,
		sarama.ErrUnknownProducerID:
		return anew
	case sarama.ErrMessageSizeTooLarge, // of the whole batch: it may be that none of its records is too large
		sarama.ErrMessageSetSizeTooLarge,
		sarama.ErrInvalidTimestamp,
		sarama.ErrUnsupportedForMessageFormat,
		sarama.ErrInvalidRecord:
		return refused
	case sarama.ErrInvalidTopic:
		return hopeless
	case sarama.ErrTopicAuthorizationFailed,
		sarama.ErrClusterAuthorizationFailed,
		sarama.ErrSASLAuthenticationFailed,
		sarama.ErrUnsupportedSASLMechanism,
		sarama.ErrIllegalSASLState,
		sarama.ErrUnsupportedVersion,
		sarama.ErrUnsupportedCompressionType,
		sarama.ErrInvalidRequiredAcks,
		sarama.ErrInvalidRequest,
		sarama.ErrPolicyViolation,
		sarama.ErrProducerFenced:
		return failed
	}
	return later // no leader, too few replicas, a timeout, and whatever brokers will say in years to come
}
