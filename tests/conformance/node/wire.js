// The wire contract as docs/protocol.md describes it: messages, digests, encodings, join tokens, certificate requests.
'use strict';
const crypto = require('node:crypto');
const path = require('node:path');
const protobuf = require('protobufjs');
const { blake3 } = require('@noble/hashes/blake3');

const PROTOS = path.join(__dirname, '..', '..', '..', 'protos');
const FILES = ['tensors', 'participation', 'transfer', 'enrolment', 'errors'];
const root = new protobuf.Root();
root.resolvePath = (_, target) => path.join(PROTOS, target);
root.loadSync(FILES.map((name) => `atoll/wire/v1/${name}.proto`), { keepCase: true });

const DOMAIN = { layout: 'atoll layout 1', blob: 'atoll blob 1\n', update: 'atoll update 1\n' };
const Encoding = { FLOAT32: 1, FLOAT16: 3, INT8_BLOCK: 16 };
const BLOCK = 128;

const typeOf = (name) => root.lookupType(`atoll.wire.v1.${name}`);
const pack = (name, fields) => Buffer.from(typeOf(name).encode(typeOf(name).fromObject(fields)).finish());
const unpack = (name, raw) =>
  typeOf(name).toObject(typeOf(name).decode(raw), { longs: Number, bytes: Buffer, defaults: true, oneofs: true });

function integers(...pairs) {
  const out = Buffer.alloc(pairs.reduce((size, [bits]) => size + bits / 8, 0));
  let at = 0;
  for (const [bits, value] of pairs) {
    if (bits === 64) out.writeBigUInt64LE(BigInt(value), at);
    else out.writeUInt32LE(value, at);
    at += bits / 8;
  }
  return out;
}

const digest = (...parts) => Buffer.from(blake3(Buffer.concat(parts.map((part) => Buffer.from(part)))));

function layoutDigest(tensors) {
  const lines = tensors.map((t) => `\n${Buffer.byteLength(t.name)} ${t.name} ${t.dtype} ${t.shape.join(',')}`);
  return digest(DOMAIN.layout + lines.join('')).toString('hex');
}

const blobName = (size, chunkBytes, chunkDigests) =>
  digest(DOMAIN.blob, integers([64, size], [32, chunkBytes]), ...chunkDigests).toString('hex');

function updateDigest(headers) {
  const order = (h) => [h.range.offset, h.range.block, h.range.stride, h.range.count];
  const sorted = [...headers].sort((a, b) => order(a).reduce((found, x, i) => found || x - order(b)[i], 0));
  const parts = sorted.flatMap((h) => [integers(...order(h).map((x) => [64, x]), [32, h.encoding]), h.digest]);
  return digest(DOMAIN.update, ...parts).toString('hex');
}

function toHalf(value) {
  const view = new DataView(new ArrayBuffer(4));
  view.setFloat32(0, value);
  const bits = view.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  const exponent = ((bits >>> 23) & 0xff) - 112;
  const fraction = bits & 0x7fffff;
  if (exponent >= 143) return sign | 0x7c00 | (fraction ? 0x200 : 0); // infinite, NaN
  const shift = exponent > 0 ? 13 : 14 - exponent;
  if (shift > 24) return sign;
  const whole = exponent > 0 ? (exponent << 23) | fraction : fraction | 0x800000;
  const rest = whole & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  const rounded = (whole >>> shift) + (rest > half || (rest === half && (whole >>> shift) & 1) ? 1 : 0);
  return sign | Math.min(rounded, 0x7c00);
}

function encode(values, encoding) {
  const wide = encoding === Encoding.FLOAT32 ? 4 : 2;
  const out = Buffer.alloc(values.length * wide);
  values.forEach((value, i) => (wide === 4 ? out.writeFloatLE(value, 4 * i) : out.writeUInt16LE(toHalf(value), 2 * i)));
  return out;
}

// The values of an int8 payload: all scales come first, one for each block of 128 elements.
function decodeInt8(payload, count) {
  const scales = Math.ceil(count / BLOCK);
  if (payload.length !== 4 * scales + count) throw new Error('a payload of another length');
  return Array.from({ length: count }, (_, i) => {
    const scale = payload.readFloatLE(4 * Math.floor(i / BLOCK));
    const integer = payload.readInt8(4 * scales + i);
    if (!(scale >= 0 && Number.isFinite(scale)) || Object.is(scale, -0) || integer === -128) throw new Error('no int8');
    return Math.fround(scale * integer);
  });
}

function readToken(text) {
  const [prefix, fields, certificate, checksum] = text.replace(/\s/g, '').split('.');
  if (prefix !== 'atoll-join-1') throw new Error(`no join token of this version: ${prefix}`);
  const hash = crypto.createHash('sha256').update(`${prefix}.${fields}.${certificate}`).digest();
  if (hash.subarray(0, 9).toString('base64url') !== checksum) throw new Error('the checksum does not match');
  const { address, id, secret } = JSON.parse(Buffer.from(fields, 'base64url'));
  return { address, id, secret, ca: Buffer.from(certificate, 'base64url') };
}

function der(tag, ...parts) {
  const body = Buffer.concat(parts);
  const length = body.length < 128 ? [body.length] : [0x81, body.length]; // a request has at most 255 bytes
  return Buffer.concat([Buffer.from([tag, ...length]), body]);
}

function pem(what, raw) {
  const lines = raw.toString('base64').match(/.{1,64}/g);
  return [`-----BEGIN ${what}-----`, ...lines, `-----END ${what}-----`, ''].join('\n');
}

// PKCS #10 (RFC 2986) with an empty subject, signed by ECDSA with SHA-256.
function certificateRequest(key) {
  const spki = crypto.createPublicKey(key).export({ type: 'spki', format: 'der' });
  const info = der(0x30, der(0x02, Buffer.from([0])), der(0x30), spki, der(0xa0));
  const algorithm = der(0x30, der(0x06, Buffer.from('2a8648ce3d040302', 'hex')));
  const signature = der(0x03, Buffer.from([0]), crypto.sign('sha256', info, key));
  return Buffer.from(pem('CERTIFICATE REQUEST', der(0x30, info, algorithm, signature)));
}

module.exports = {
  Encoding, pack, unpack, typeOf, digest, layoutDigest, blobName, updateDigest, encode, decodeInt8, readToken, pem,
  certificateRequest,
};
