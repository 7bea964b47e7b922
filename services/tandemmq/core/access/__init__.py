"""Who may do what: identities of services, users and their policies."""
