package outbox

import "sync"

// bell wakes one listener. A ring that finds another one waiting adds nothing to it.
type bell struct{ rung chan struct{} }

func newBell() *bell { return &bell{make(chan struct{}, 1)} }

func (b *bell) ring() {
	select {
	case b.rung <- struct{}{}:
	default:
	}
}

// wake tells those who listen in this process that something has been committed.
type wake struct {
	mu    sync.Mutex
	bells map[*bell]struct{}
}

func (w *wake) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for b := range w.bells {
		b.ring()
	}
}

// add has a bell ring at each signal from now on, until remove is called.
func (w *wake) add(b *bell) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bells == nil {
		w.bells = make(map[*bell]struct{})
	}
	w.bells[b] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.bells, b)
	}
}
