"""The aggregator: a gateway for the participants of one site or region (docs/aggregators.md).

``gateway.site`` relays and folds. This package makes it a separate process: its enrolment, its certificates, the
enrolment of its participants through it, and its ports.
"""
