"""FastLLM's data plane: one stateless replica.

Words
-----
replica     this process
snapshot    the configuration as the control plane published it (`fastllm_shared.snapshot`)
view        the snapshot as indexes that requests are served from (`view`); immutable, swapped whole
caller      one API key with its principal, as the view knows it
backend     the live object behind an entry: pool, in-flight count, health; outlives a swap (`backends`)
chain       the ordered targets, and of each the ordered backends, that one request may try
attempt     one try of one backend
exchange    one request's facts (`exchange`)
downstream  the client's side of an exchange (`downstream`); upstream: the backend's (`upstream`)

The path of one request, in the order of the modules that it passes
-------------------------------------------------------------------
 1. connection    a client's socket: one task that serves its requests in turn; `request_parser` and `chunks`
                  (what is a request, where it ends), `heads` (what its head says), `outflow`, `linger`
    accept        the server: path → endpoint (`endpoints`, or `local` for what is answered here), request id,
                  limits; `refusals` are what this process itself says no with
 2. authenticate  key digest → caller, on the `client_headers` alone
 3. body          reading within the limits, whole or in pieces, 100-continue, `inflation`
 4. peek          the top-level members that matter, and where they stand
    forms         the same of multipart forms: `multipart` and `part_heads` find the fields, and what is large
                  goes to disk (`spool`)
 5. authorise     frontend model → may this caller name it
 6. limits        rate, tokens, concurrency, budget (empty so far: everything passes)
 7. routing       rules and targets → chain, by the engine in `fastllm_shared` that the dry run shares
    kept_state    requests that need the one backend that holds their state
 8. balancer      backends of a target in the order in which they should be tried
 9. gate          flow control per backend (empty so far: always open)
10. forward       attempt after attempt until one answers: `candidates` (who is next), `retries` (how many
                  there may be), `outcomes` (which of them decides)
    dispatch      one attempt: gate, connect, send, await the head; `rewrite` (the body as this backend is to
                  see it), `wire` (the headers), `traffic` (what attempts say about a backend:
                  its latency; ejection comes later)
    delivery      its answer: `verdict` (what a status means), `answer_headers`, `error_text` and `rejections`
                  (what its words say); whole, or by relay
11. relay         bytes onward, back-pressure (`stall`: clients that take nothing), the hidden usage event
                  (`sse`), pings, death of either side
12. meter         usage (`figures`) from head and tail (`mirror`, if need be `compressed`) in either of the
                  `dialects`, cost, the event
    pipeline      holds the stages together, and alone knows their order

Beside it
---------
`process` (signals, exit code) with `listen` and `native`, `app` (the composition root), `config`, `drain`,
`timers` (all time-outs of requests); the supervised `loops`: `subscribe` (polls snapshots), `outbox` (usage
on its way), `report` (health reports), `health` with `probe`, `engine` (scrapes, empty so far), `lag`;
`control_plane` (their channel), `snapshots` (store and swap), `pools` with `tls` and `tcp`; `upstream` (a
backend's pool) with `upstream_connection`, `sending`, `waiting`, `tls_transport` and `response_parser`; what
is seen: `status`, `metrics` with `exposition`, `access_log` and `observe` with `sink`; and `errors`.
"""
