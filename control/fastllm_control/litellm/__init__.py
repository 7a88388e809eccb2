"""A LiteLLM proxy's configuration taken over, in the order in which to read it.

`findings`     what is said of it: each field that is not carried and why, warnings, errors; no values
`reasons`      why fields that LiteLLM has are not carried
`reading`      the YAML with its includes
`upstreams`    what a provider prefix stands for: address, dialect, how the credential is sent
`values`       references to the environment, figures, credentials
`deployments`  one entry of `model_list`
`groups`       the entries of one model name → provider models, pools, targets
`routes`       aliases and fallbacks → frontend models
`master_key`   whether it is weak
`converting`   all of it → a document of `declared`, and what cannot stand in one
`database`     keys, teams, users and budgets out of LiteLLM's database
`holders`      those → principals, roles, limits, budgets and digests of keys
`ownership`    what imports made: nothing else is ever changed or removed
`importing`    all of it applied in one transaction
"""
