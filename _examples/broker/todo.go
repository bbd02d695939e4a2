package broker

func nats(a *address) opener  { return later(a) }
func amqp(a *address) opener  { return later(a) }
func redis(a *address) opener { return later(a) }

func later(a *address) opener {
	a.fault("is not there yet")
	return nil
}
