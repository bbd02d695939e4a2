package journal

import (
	"context"
	"time"
)

// Owner lets tests take the steps of Run one by one.
type Owner struct {
	j *Journal
	o owner
}

// Found is a row as a claim finds it.
type Found = entry

func (j *Journal) NewOwner(id ID) Owner { return Owner{j, owner{id, newToken()}} }

func (o Owner) Token() int64 { return o.o.token }

func (o Owner) Claim(ctx context.Context) (found Found, err error) {
	return o.j.claim(ctx, o.o, nil)
}

func (o Owner) TakeOver(ctx context.Context, found Found) (taken bool, err error) {
	_, taken, err = o.j.takeOver(ctx, o.o, found, nil)
	return taken, err
}

func (o Owner) Renew(ctx context.Context) (held bool, err error) {
	l := &lease{journal: o.j, owner: o.o, until: time.Now().Add(o.j.config.Lease)}
	return l.renew(ctx, l.until)
}

func (o Owner) End(ctx context.Context, state, json, text string) error {
	return o.j.end(ctx, o.o, ending{state: state, json: []byte(json), text: text}, time.Minute)
}

func (e entry) Fields() (token int64, state string, over bool) { return e.token, e.state, e.over }
