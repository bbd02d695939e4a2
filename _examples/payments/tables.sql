create table orders (
  id         text primary key,
  amount     bigint not null,
  charge_key text not null unique, -- the charge's idempotency key, by which the journal of calls knows it
  status     text not null default 'placed' check (status in ('placed', 'paid', 'declined', 'unknown')),
  detail     text not null default '' -- the charge's number, or why there is none
);
