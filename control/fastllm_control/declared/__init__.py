"""Configuration as a file, in the order in which to read it.

`document`   what a file can say, as Structs; references are names, credentials are references
`problems`   what is wrong with it, each with its line and field
`text`       YAML → document, with the line of everything that is wrong; document → YAML
`export`     the database → document
`plan`       what it takes to get from one document to another; pure
`applying`   the plan, step by step, through the services that the admin API uses
"""
