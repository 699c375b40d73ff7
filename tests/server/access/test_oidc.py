"""Which tokens admit an operator and which do not: keys and documents are the test's, signatures are real."""

import asyncio
import base64
import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from atoll.server.access import oidc, oidc_provider
from atoll.server.access.oidc import TokenEndedError, TokenVerifier
from atoll.server.access.oidc_provider import COOLDOWN_S, FRESH_S, STALE_S, Keys
from atoll.server.config.oidc_settings import OidcSettings
from atoll.server.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from atoll.server.identity import OperatorRole, ProjectRole, Rights
from tests.patience import WAIT_S

ISSUER = "https://login.example.org"
RSA = rsa.generate_private_key(65537, 2048)
ROLES = {"admins": OperatorRole.ADMINISTRATOR, "staff": OperatorRole.OPERATOR, "watch": OperatorRole.VIEWER}


class Provider:
    """Documents that a test can change; counts fetches."""

    def __init__(self, key: Any = RSA) -> None:
        self.keys = {"one": key}
        self.issuer = ISSUER
        self.fetched: list[str] = []
        self.away = False
        self.error: Exception | None = None

    def __call__(self, url: str) -> bytes:
        self.fetched.append(url)
        if self.away:
            raise OSError("away")
        if self.error is not None:
            raise self.error
        if url == f"{ISSUER}/.well-known/openid-configuration":
            return json.dumps({"issuer": self.issuer, "jwks_uri": f"{ISSUER}/keys"}).encode()
        return json.dumps({"keys": [_public(name, key) for name, key in self.keys.items()]}).encode()


def _public(name: str, key: Any) -> dict[str, Any]:
    kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    found: dict[str, Any] = kind.to_jwk(key.public_key(), as_dict=True)
    return found | {"kid": name, "use": "sig"}


class World:
    def __init__(self, provider: Provider | None = None, **settings: Any) -> None:
        self.provider = provider or Provider()
        self.steady = 0.0
        chosen: dict[str, Any] = {"issuer": ISSUER, "client_id": "atoll", "roles": ROLES} | settings
        self.settings = OidcSettings(**chosen)
        self.verifier = self.again()

    def again(self, clock: Callable[[], float] = time.time) -> TokenVerifier:
        return TokenVerifier(self.settings, Keys(ISSUER, self.provider, lambda: self.steady), clock)

    async def refusal(self, token: str) -> str:
        with pytest.raises(UnauthenticatedError) as caught:
            await self.verifier.verify(token)
        return caught.value.detail.message


def claims(**changes: Any) -> dict[str, Any]:
    now = time.time()
    made = {"iss": ISSUER, "aud": "atoll", "sub": "dora", "iat": now, "exp": now + 600, "roles": ["staff"]}
    return {name: value for name, value in (made | changes).items() if value is not None}


def token(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "one", **changes: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


async def test_a_good_token_brings_name_and_role() -> None:
    found = await World().verifier.verify(token())
    assert (found.name, found.rights) == ("oidc:dora", Rights(OperatorRole.OPERATOR))


async def test_elliptic_curves_are_taken_too() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    assert (await World(Provider(key)).verifier.verify(token(key, "ES256"))).name == "oidc:dora"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"aud": "another"}, "Audience doesn't match"),
        ({"aud": None}, 'missing the "aud" claim'),
        ({"iss": "https://evil.example.org"}, "Invalid issuer"),
        ({"iss": None}, 'missing the "iss" claim'),
        ({"exp": None}, 'missing the "exp" claim'),
        ({"iat": None}, 'missing the "iat" claim'),
        ({"sub": None}, 'missing the "sub" claim'),
        ({"iat": time.time() + 3600}, "not yet valid"),
        ({"nbf": time.time() + 3600}, "not yet valid"),
        ({"aud": ["atoll", "mail"], "azp": "mail"}, "made for the client 'mail'"),
        ({"aud": ["atoll", "mail"]}, "made for the client 'None'"),
        ({"azp": "mail"}, "made for the client 'mail'"),
        ({"sub": ""}, "no claim 'sub'"),
    ],
)
async def test_what_does_not_fit_is_refused(changes: Mapping[str, Any], why: str) -> None:
    assert why in await World().refusal(token(**changes))


async def test_a_token_that_has_ended_is_refused_beyond_the_leeway() -> None:
    world, now = World(), time.time()
    await world.verifier.verify(token(iat=now - 600, exp=now - 30))  # the clocks differ
    with pytest.raises(TokenEndedError):
        await world.verifier.verify(token(iat=now - 600, exp=now - 90))


async def test_a_token_ends_however_long_it_is_valid() -> None:
    old = token(iat=time.time() - 7200, exp=time.time() + 10**6)
    with pytest.raises(TokenEndedError):
        await World(max_token_age_s=3600).verifier.verify(old)


async def test_a_remembered_token_ends_too() -> None:
    world, good = World(), token()
    now = time.time()
    verifier = world.again(lambda: now)
    await verifier.verify(good)
    now += 3600
    with pytest.raises(TokenEndedError):
        await verifier.verify(good)


def _unsigned(header: Mapping[str, Any]) -> str:
    parts = (json.dumps(part).encode() for part in (header, claims()))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts) + "."


@pytest.mark.parametrize("name", ["none", "None", "nOnE", "HS256", "HS512", "RS1", "", 7])
async def test_other_algorithms_are_refused(name: Any) -> None:
    assert "not accepted" in await World().refusal(_unsigned({"alg": name, "kid": "one", "typ": "JWT"}))


async def test_the_public_key_is_no_secret_for_hs256() -> None:
    """RFC 8725, 2.1: a verifier that uses the key's bytes for HMAC would accept anyone's token."""
    pem = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signed = _unsigned({"alg": "HS256", "kid": "one"}).rstrip(".")
    mark = base64.urlsafe_b64encode(hmac.new(pem, signed.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()
    assert "algorithm 'HS256' is not allowed" in await World().refusal(f"{signed}.{mark}")


async def test_another_key_under_the_same_id_is_refused() -> None:
    forged = token(rsa.generate_private_key(65537, 2048))
    assert "Signature verification failed" in await World().refusal(forged)


async def test_an_algorithm_that_is_not_the_keys_is_refused() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    assert "not accepted" in await World().refusal(token(key, "ES256"))


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "..", "é.é.é", "x" * 100_000])
async def test_rubbish_is_refused(text: str) -> None:
    assert "not accepted" in await World().refusal(text)


class TestKeys:
    async def test_a_new_key_is_fetched_and_a_withdrawn_one_forgotten(self) -> None:
        world, fresh = World(), rsa.generate_private_key(65537, 2048)
        await world.verifier.verify(token())
        world.provider.keys = {"two": fresh}
        world.steady += COOLDOWN_S + 1
        await world.verifier.verify(token(fresh, kid="two"))
        assert "no such key" in await world.refusal(token(sub="eve"))

    async def test_a_withdrawn_key_is_forgotten_though_no_new_one_comes(self) -> None:
        world = World()
        await world.verifier.verify(token())
        world.provider.keys = {"two": RSA}
        await world.verifier.verify(token(sub="eve"))
        world.steady += FRESH_S + 1
        assert "no such key" in await world.refusal(token(sub="frank"))

    async def test_a_token_by_a_withdrawn_key_is_refused_though_it_was_good_before(self) -> None:
        world, good = World(), token()
        await world.verifier.verify(good)
        world.provider.keys = {"one": rsa.generate_private_key(65537, 2048)}
        world.steady += FRESH_S + 1
        assert "Signature verification failed" in await world.refusal(good)
        assert not world.verifier.knows(good)

    async def test_a_caller_that_breaks_off_does_not_end_the_fetch(self) -> None:
        began, go_on, provider = threading.Event(), threading.Event(), Provider()

        def fetch(url: str) -> bytes:
            began.set()
            go_on.wait(WAIT_S)
            return provider(url)

        keys = Keys(ISSUER, fetch)
        finding = asyncio.ensure_future(keys.find("made-up"))
        await asyncio.to_thread(began.wait, WAIT_S)
        finding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await finding
        go_on.set()
        assert await keys.find("one") is not None

    async def test_a_provider_that_hangs_does_not_delay_tokens_signed_with_a_known_key(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world, go_on = World(), threading.Event()
        await world.verifier.verify(token())
        monkeypatch.setattr(oidc_provider, "PATIENCE_S", 0.01)

        def hang(*_: object) -> bytes:
            go_on.wait(WAIT_S)
            raise OSError("away")

        monkeypatch.setattr(Provider, "__call__", hang)
        world.steady += FRESH_S + 1
        await asyncio.wait_for(world.verifier.verify(token(sub="eve")), WAIT_S / 2)
        go_on.set()

    @pytest.mark.parametrize("error", [http.client.IncompleteRead(b""), RecursionError(), TypeError()])
    async def test_whatever_a_provider_answers_its_keys_serve_for_a_while(self, error: Exception) -> None:
        world = World()
        await world.verifier.verify(token())
        world.provider.error = error
        world.steady += FRESH_S + 1
        await world.verifier.verify(token(sub="eve"))

    async def test_made_up_ids_do_not_flood_the_provider(self) -> None:
        world = World()
        await world.verifier.verify(token())
        fetched = len(world.provider.fetched)
        for number in range(50):
            await world.refusal(token(kid=f"made-up-{number}"))
        assert len(world.provider.fetched) == fetched
        world.steady += COOLDOWN_S + 1
        for number in range(50):
            await world.refusal(token(kid=f"made-up-{number}"))
        assert len(world.provider.fetched) == fetched + 2

    async def test_a_provider_that_is_away_is_said_and_its_keys_serve_for_a_while(self) -> None:
        world = World()
        world.provider.away = True
        with pytest.raises(UnavailableError, match="cannot be reached"):
            await world.verifier.verify(token())
        world.provider.away = False
        world.steady += COOLDOWN_S + 1
        await world.verifier.verify(token())
        world.provider.away = True
        world.steady += FRESH_S + 1
        await world.verifier.verify(token(sub="eve"))
        world.steady += STALE_S
        with pytest.raises(UnavailableError):
            await world.verifier.verify(token(sub="frank"))

    async def test_another_issuers_document_is_not_believed(self) -> None:
        world = World()
        world.provider.issuer = "https://evil.example.org"
        with pytest.raises(UnavailableError):
            await world.verifier.verify(token())

    @pytest.mark.parametrize(
        "document",
        [b"", b"[]", b"{", b'{"issuer": "https://login.example.org", "jwks_uri": "file:///etc/passwd"}'],
    )
    async def test_documents_that_cannot_be(self, document: bytes) -> None:
        with pytest.raises(UnavailableError):
            await Keys(ISSUER, lambda _: document).find("one")


class TestRoles:
    @pytest.mark.parametrize(
        ("brought", "role"),
        [
            ("staff", OperatorRole.OPERATOR),
            (["watch", "staff", "unknown"], OperatorRole.OPERATOR),
            (["watch", "admins"], OperatorRole.ADMINISTRATOR),
            (["watch"], OperatorRole.VIEWER),
        ],
    )
    async def test_the_first_of_several_counts(self, brought: object, role: OperatorRole) -> None:
        assert (await World().verifier.verify(token(roles=brought))).rights.everywhere is role

    @pytest.mark.parametrize(
        "brought", [None, [], ["administrator"], "Admins", {"admins": True}, [["admins"]], 7, "admins,staff"]
    )
    async def test_without_a_known_value_there_is_no_access(self, brought: object) -> None:
        with pytest.raises(ForbiddenError, match="oidc:dora has no role here"):
            await World().verifier.verify(token(roles=brought))

    async def test_roles_in_single_projects(self) -> None:
        world = World(project_roles={"cardio": {"team": OperatorRole.OPERATOR, "boss": OperatorRole.ADMINISTRATOR}})
        in_cardio = {"cardio": ProjectRole(OperatorRole.ADMINISTRATOR)}
        assert (await world.verifier.verify(token(roles=["boss", "team"]))).rights == Rights(None, in_cardio)
        both = (await world.verifier.verify(token(roles=["watch", "boss"]))).rights
        assert both == Rights(OperatorRole.VIEWER, in_cardio)
        with pytest.raises(ForbiddenError, match="has no role here") as refused:
            await world.verifier.verify(token(roles=["others"]))
        assert "boss" in refused.value.detail.remedy

    async def test_a_claim_within_a_claim(self) -> None:
        world = World(role_claim="realm_access.roles")
        nested = token(realm_access={"roles": ["admins"]})
        assert (await world.verifier.verify(nested)).rights.everywhere is OperatorRole.ADMINISTRATOR
        with pytest.raises(ForbiddenError):
            await world.verifier.verify(token(realm_access="admins"))


class TestNames:
    async def test_an_address_must_be_verified(self) -> None:
        world = World(name_claim="email")
        address = {"email": "dora@example.org"}
        assert (await world.verifier.verify(token(**address, email_verified=True))).name == "oidc:dora@example.org"
        for said in (False, "true", None):
            assert "not verified" in await world.refusal(token(**address, email_verified=said))

    @pytest.mark.parametrize("subject", ["x" * 60, "sha256:abc", "a b", "\x1b[2J", "dora\n", "名前"])
    async def test_long_and_unprintable_ones_become_digests(self, subject: str) -> None:
        name = (await World().verifier.verify(token(sub=subject))).name
        assert name.startswith("oidc:sha256:")
        assert len(name) <= 64
        assert name != (await World().verifier.verify(token(sub=subject + "!"))).name

    async def test_names_differ_from_those_of_operators_with_certificates(self) -> None:
        assert (await World().verifier.verify(token(sub="admin"))).name == "oidc:admin"


async def test_an_access_token_need_not_name_the_client() -> None:
    world = World(token="access", audience="api://atoll")
    assert (await world.verifier.verify(token(aud="api://atoll", azp="portal"))).name == "oidc:dora"
    assert "Audience" in await world.refusal(token())


async def test_few_tokens_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "_KNOWN", 2)
    world = World()
    for name in "abc":
        await world.verifier.verify(token(sub=name))
    assert len(world.verifier._known) == 2
