package attempt

// CorrelationIDKey is Watermill's metadata key for the correlation id.
const CorrelationIDKey = "correlation_id"

// TraceKeys are the metadata keys of a trace, by W3C Trace Context and W3C Baggage.
var TraceKeys = [...]string{"traceparent", "tracestate", "baggage"}

// Headers picks from a message's metadata what the messages produced by its handler inherit; nil: nothing.
func Headers(metadata map[string]string) map[string]string {
	var headers map[string]string
	pick := func(key string) {
		if value := metadata[key]; value != "" {
			if headers == nil {
				headers = make(map[string]string, 1+len(TraceKeys))
			}
			headers[key] = value
		}
	}
	pick(CorrelationIDKey)
	for _, key := range TraceKeys {
		pick(key)
	}
	return headers
}
