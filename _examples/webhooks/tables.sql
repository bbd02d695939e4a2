create table cards (
  card       text primary key,
  status     text not null,
  changed_at timestamptz not null,
  event_id   text not null,
  updated_at timestamptz not null default now()
);

-- What must add up keeps the event's id, unique: the last line of defence should the claims ever be lost.
create table ledger_entries (
  event_id   text primary key,
  card       text not null,
  amount     bigint not null,
  created_at timestamptz not null default now()
);

-- Stands in for the mail service. id is the order in which e-mails were sent.
create table emails (
  id              bigint generated always as identity primary key,
  idempotency_key text not null unique,
  card            text not null,
  status          text not null,
  changed_at      timestamptz not null,
  sent_at         timestamptz not null default now()
);
