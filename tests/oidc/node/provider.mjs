// A provider for the tests: OpenID Connect on 127.0.0.1, with device codes. Prints its issuer on one line.
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id: "atoll",
        application_type: "native",
        token_endpoint_auth_method: "none",
        redirect_uris: ["http://127.0.0.1/callback"],
        response_types: ["code"],
        grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
      },
    ],
    claims: { openid: ["sub", "roles"] },
    conformIdTokenClaims: false,
    cookies: { keys: ["a key of the tests"] },
    features: { deviceFlow: { enabled: true }, revocation: { enabled: true }, devInteractions: { enabled: true } },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, roles: [id.split("-")[0]] }) }),
    ttl: { IdToken: Number(process.argv[2] ?? 3600) },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
process.stdin.resume();
process.stdin.on("end", () => process.exit(0));
