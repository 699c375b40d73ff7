"""Who may do what: certificates that were issued, named operators, and the operator's credential on this machine."""
