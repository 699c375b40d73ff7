// Reads protos/vectors with this client's own code; exits with 1 and says which case differs.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const wire = require('./wire');

const FOLDER = path.join(__dirname, '..', '..', '..', 'protos', 'vectors');
const read = (name) => JSON.parse(fs.readFileSync(path.join(FOLDER, name)));
const bytes = (hex) => Buffer.from(hex, 'hex');

for (const found of read('layout.json').cases) assert.equal(wire.layoutDigest(found.tensors), found.digest);

for (const found of read('blob.json').cases) {
  const data = Buffer.from(Array.from({ length: found.bytes }, (_, i) => i % 251));
  const digests = [];
  for (let at = 0; at < data.length; at += found.chunk_bytes) digests.push(wire.digest(data.subarray(at, at + found.chunk_bytes)));
  assert.deepEqual(digests.map((one) => one.toString('hex')), found.chunk_digests);
  assert.equal(wire.blobName(found.bytes, found.chunk_bytes, digests), found.name);
}

for (const found of read('update.json').cases) {
  const headers = found.chunks.map(({ offset, block, stride, count, encoding, payload, digest }) => {
    assert.equal(wire.digest(bytes(payload)).toString('hex'), digest);
    return { range: { offset, block, stride, count }, encoding, digest: bytes(digest) };
  });
  assert.equal(wire.updateDigest(headers), found.digest, found.about);
}

for (const found of read('encodings.json').cases) {
  if ([wire.Encoding.FLOAT32, wire.Encoding.FLOAT16].includes(found.encoding))
    assert.equal(wire.encode(found.values, found.encoding).toString('hex'), found.payload, found.name);
  if (found.encoding === wire.Encoding.INT8_BLOCK)
    assert.deepEqual(wire.decodeInt8(bytes(found.payload), found.values.length), found.decoded);
}
for (const found of read('encodings.json').refused.filter((one) => one.encoding === wire.Encoding.INT8_BLOCK))
  assert.throws(() => wire.decodeInt8(bytes(found.payload), found.count), found.why);

for (const found of read('join-token.json').cases) {
  const { address, id, secret, ca } = wire.readToken(found.token);
  assert.deepEqual({ address, id, secret, ca_certificate_der: ca.toString('hex'), token: found.token }, found);
}
for (const found of read('join-token.json').refused) assert.throws(() => wire.readToken(found.token), found.why);

const MESSAGES = { error: 'ErrorDetail', invitation: 'CheckInResponse', upload: 'UploadRequest', report: 'ReportRequest' };
for (const [file, name] of Object.entries(MESSAGES)) {
  for (const found of read(`${file}.json`).cases) {
    const type = wire.typeOf(name);
    const fields = type.toObject(type.decode(bytes(found.message)), { longs: String, enums: String, bytes: String });
    assert.deepEqual(fields, found.fields, name);
  }
}
process.stdout.write('the vectors agree\n');
