"""Who may do what: identities of services, users and their policies."""

"""Who may do what: users, policies, signatures, and secrets at rest."""
