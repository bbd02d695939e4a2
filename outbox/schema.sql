-- An outbox: the messages that committed transactions have left for the broker, each until a relay has sent it.
-- Does nothing, and waits for nobody, where all is there; adds the columns that a table of an earlier version lacks.
do $schema$
begin
    if (
        select count(*)
        from pg_attribute
        where attrelid = to_regclass('watermill_outbox')
          and attname in ('transaction_id', 'topic', 'key', 'attempts', 'last_error', 'next_attempt_at', 'parked_at', 'sent_at')
          and not attisdropped
    ) = 8 and exists (
        select
        from pg_index
        where indrelid = to_regclass('watermill_outbox')
          and indpred is not null
          and indkey[0] = (select attnum from pg_attribute where attrelid = indrelid and attname = 'key')
    ) then
        return;
    end if;

    -- One at a time: "if not exists" alone fails when several processes boot at once. It is needed all the same: the
    -- lock tells this session nothing about tables that others made while it waited.
    perform pg_advisory_xact_lock(5747205846195380301);

    if to_regclass('watermill_outbox') is null then
        create table if not exists watermill_outbox (
            -- Before the offset: columns get their defaults in this order, and a transaction must have its id before it
            -- draws an offset, also where the row is written by hand.
            transaction_id  xid8 not null default pg_current_xact_id(),
            "offset"        bigserial primary key,
            created_at      timestamptz not null default clock_timestamp(),
            uuid            text not null,
            topic           text not null check (topic <> ''),
            key             text collate "C" not null,
            payload         bytea not null default '',
            -- An object of strings. Being valid JSON already, only its shape is looked at; a regular expression is half
            -- the price of jsonb here.
            metadata        json not null default '{}'
                            check (metadata::text ~ '^\s*\{(\s*"([^"\\]|\\.)*"\s*:\s*"([^"\\]|\\.)*"\s*,?)*\s*\}\s*$'),
            -- What the relay notes down. A parked message has next_attempt_at = infinity.
            attempts        integer not null default 0,
            last_error      text,
            next_attempt_at timestamptz,
            parked_at       timestamptz,
            sent_at         timestamptz
        );
    elsif (
        select count(*)
        from pg_attribute
        where attrelid = to_regclass('watermill_outbox')
          and attname in ('transaction_id', 'offset', 'created_at', 'uuid', 'topic', 'key', 'payload', 'metadata')
          and not attisdropped
    ) < 8 then
        raise exception 'the table watermill_outbox is there and is no outbox: it lacks columns'
            using hint = 'A table of watermill-sql''s default schema cannot be extended. Choose another Config.Topic.';
    else
        alter table watermill_outbox
            add column if not exists attempts integer not null default 0,
            add column if not exists last_error text,
            add column if not exists next_attempt_at timestamptz,
            add column if not exists parked_at timestamptz,
            add column if not exists sent_at timestamptz;
    end if;

    -- The messages that the broker did not take. The relay asks for each message whether one of its key is among them.
    if not exists (
        select
        from pg_index
        where indrelid = to_regclass('watermill_outbox')
          and indpred is not null
          and indkey[0] = (select attnum from pg_attribute where attrelid = indrelid and attname = 'key')
    ) then
        create index on watermill_outbox (key, "offset") where next_attempt_at is not null;
    end if;
end
$schema$;
