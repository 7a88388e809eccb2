"""FastLLM's control plane.

Words
-----
principal   who is calling: a user or a service account; roles, keys, limits, budgets and usage hang on it
actor       the principal behind one admin call, with its permissions and address
operation   one route of the admin API: method, path, permission, structs, handler (`operations`)
service     one use case: takes a `Transaction`, does its work through repositories, never commits
repository  SQL only, one module a domain
document    a configuration file as Structs; what is exported and applied (`declared`)
plan        the steps from one document to another
content     what is in a snapshot; a change of content, and nothing else, makes a new version

A write, in the order in which it runs
--------------------------------------
1. `context`        the outermost layer: request id, access log, metrics
2. `dispatch`       find the `operations` entry, then the caller (`callers`), decode strictly (`decoding`)
3. `api.<domain>`   hands the decoded struct to one service function
4. `services`       checks and changes rows through `repositories`, notes what was done in the transaction
5. `transaction`    one commit: rows, audit events, the new version if content changed, NOTIFY
6. `publisher`      hears of the version, reads the rows (`snapshot`), publishes, answers waiting polls

Beside it
---------
`declared` (export and apply of a configuration file) and `litellm` (the import) go through the same services;
`routing_preview` is the dry run; `openapi` describes the `operations` with `schemas`, `glossary`, `examples`
and `curl`, and `reference` shows that as a page.
"""
