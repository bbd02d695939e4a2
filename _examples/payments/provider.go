package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// provider stands in for a payment provider on a bad day, and for a mail service. Its ledger is the truth: what customers see on their
// statements.
type provider struct {
	keys bool // it honours idempotency keys, as the mail service does anyway
	kill func(worker string)

	mu      sync.Mutex
	faults  map[string]fault // by order; each is met once
	poor    map[string]bool  // orders whose cards are declined
	ledger  []entry
	refused map[string]bool   // orders that it has declined
	answers map[string]answer // by idempotency key
	doubt   map[string]bool   // orders of which it has told nobody what became of them
	mails   map[string]int    // by order
	mailed  map[string]bool   // by idempotency key
	kills   int
}

// entry is one charge.
type entry struct{ charge, order string }

type answer struct {
	status int
	text   string
}

func newProvider(orders []planned, keys bool, kill func(worker string)) *provider {
	p := &provider{
		keys: keys, kill: kill, faults: map[string]fault{}, poor: map[string]bool{}, refused: map[string]bool{},
		answers: map[string]answer{}, doubt: map[string]bool{}, mails: map[string]int{}, mailed: map[string]bool{},
	}
	for _, o := range orders {
		p.faults[o.ID], p.poor[o.ID] = o.fault, o.declined
	}
	return p
}

func (p *provider) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.postCharge)
	mux.HandleFunc("GET /charges", p.getCharge)
	mux.HandleFunc("POST /mails", p.postMail)
	return mux
}

func (p *provider) postCharge(w http.ResponseWriter, r *http.Request) {
	var request chargeRequest
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	f := p.meet(request.Order)
	switch f {
	case busy:
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	case errorBefore:
		http.Error(w, "sorry", http.StatusInternalServerError)
		return
	case killBefore:
		p.killWorker(r)
		return
	}
	a := p.charge(r.Header.Get("Idempotency-Key"), request.Order)
	switch f {
	case errorAfter:
		http.Error(w, "sorry", http.StatusInternalServerError)
	case silent:
		<-r.Context().Done() // the caller has hung up
	case hangUp:
		panic(http.ErrAbortHandler)
	case killAfter:
		p.killWorker(r)
	case killAnswered:
		a.write(w)
		_ = http.NewResponseController(w).Flush()
		p.killWorker(r)
	default:
		a.write(w)
	}
}

func (a answer) write(w http.ResponseWriter) {
	w.Header().Set("Content-Length", strconv.Itoa(len(a.text)))
	w.WriteHeader(a.status)
	_, _ = w.Write([]byte(a.text)) // a caller who is gone asks again
}

// meet gives an order's fault, and none from then on.
func (p *provider) meet(order string) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.faults[order]
	delete(p.faults, order)
	if f.doubtful() {
		p.doubt[order] = true
	}
	return f
}

func (p *provider) killWorker(r *http.Request) {
	p.kill(r.UserAgent())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kills++
}

// charge charges, unless the card is declined. A key that is known gets its answer again.
func (p *provider) charge(key, order string) answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.keys && key != ""
	if a, again := p.answers[key]; known && again {
		return a
	}
	var a answer
	if p.poor[order] {
		p.refused[order] = true
		a = answer{http.StatusPaymentRequired, "insufficient funds"}
	} else {
		e := entry{fmt.Sprintf("charge-%04d", len(p.ledger)+1), order}
		p.ledger = append(p.ledger, e)
		text, _ := json.Marshal(charged{e.charge}) // a string: it never fails
		a = answer{http.StatusOK, string(text)}
	}
	if known {
		p.answers[key] = a
	}
	return a
}

func (p *provider) getCharge(w http.ResponseWriter, r *http.Request) {
	order := r.URL.Query().Get("order")
	var found finding
	p.mu.Lock()
	if i := slices.IndexFunc(p.ledger, func(e entry) bool { return e.order == order }); i >= 0 {
		found.Charge = p.ledger[i].charge
	}
	if p.refused[order] {
		found.Declined = "insufficient funds"
	}
	p.mu.Unlock()
	_ = json.NewEncoder(w).Encode(found)
}

// postMail sends each e-mail once for its key, and fails after it has sent every third.
func (p *provider) postMail(w http.ResponseWriter, r *http.Request) {
	var mail receipt
	if err := json.NewDecoder(r.Body).Decode(&mail); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	p.mu.Lock()
	again := p.mailed[key]
	if !again {
		p.mailed[key] = true
		p.mails[mail.Order]++
	}
	fails := !again && len(p.mailed)%3 == 0
	p.mu.Unlock()
	if fails {
		http.Error(w, "sorry", http.StatusInternalServerError)
	}
}

// fact is what the provider knows of an order.
func (p *provider) fact(order string) fact {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := fact{order: order, mails: p.mails[order], doubtful: p.doubt[order]}
	for _, e := range p.ledger {
		if e.order == order {
			f.charges++
		}
	}
	return f
}

func (p *provider) killed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kills
}
