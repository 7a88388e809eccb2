"""Configuration as a file, in the order in which to read it.

`document`   what a file can say, as Structs; references are names, credentials are references
`problems`   what is wrong with it, each with its line and field
`text`       YAML → document, with the line of everything that is wrong; document → YAML
`export`     the database → document
`checking`   what is wrong with a document whose shape is right
`references` what its references to secrets stand for
`plan`       what it takes to get from one document to another; pure
`performing` the plan, step by step, through the services that the admin API uses
`merging`    one audit event for each object, however many steps it took
`applying`   all of it in one transaction, or none
"""
