"""Who may do what: users, policies, signatures, and secrets at rest."""
