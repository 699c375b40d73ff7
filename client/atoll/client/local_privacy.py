"""Local randomisers: the update is noised on this machine, so that its privacy needs no trust in the server.

::

    from atoll.client import Policy, run
    from atoll.client.local_privacy import Gaussian, Limit, LocalPrivacy

    local = LocalPrivacy(Gaussian(epsilon=1.0, delta=1e-7, clip_norm=1.0), limit=Limit(epsilon=8.0, delta=1e-5))
    run(participant, join_token, policy=Policy(local_privacy=local))

The unit of privacy is the participant: no two updates that it might send can be distinguished better than epsilon and
delta allow. A ledger in the state directory adds up what all rounds and runs spend; a round beyond the limit is
declined before training. Metrics are not sent, the weight is the declared one, and an update that is not finite is sent
as zero, because a failure would reveal something about the data.
"""

from atoll.client._privacy.ledger import Limit
from atoll.client._privacy.randomisers import Gaussian, LocalPrivacy, Mechanism, Sphere

__all__ = ["Gaussian", "Limit", "LocalPrivacy", "Mechanism", "Sphere"]
