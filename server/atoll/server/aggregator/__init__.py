"""The aggregator: a gateway for the participants of one site or region (docs/aggregators.md).

``gateway.site`` relays and folds; here are what makes it a process of its own: how it enrols, its certificates, the
enrolment of its participants through it, its ports.
"""
