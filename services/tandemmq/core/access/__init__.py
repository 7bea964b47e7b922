"""Who may do what: identities of services, users, policies, signatures, and secrets at rest."""
