package outbox

import "sync"

// wake tells relays of the same process that something has been committed. A signal that finds another one waiting
// adds nothing to it.
type wake struct {
	mu        sync.Mutex
	listeners map[chan struct{}]struct{}
}

func (w *wake) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.listeners {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// listen gives a channel that receives after each signal from now on, until stop is called.
func (w *wake) listen() (signals <-chan struct{}, stop func()) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners == nil {
		w.listeners = make(map[chan struct{}]struct{})
	}
	w.listeners[c] = struct{}{}
	return c, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.listeners, c)
	}
}
