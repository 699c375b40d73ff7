// A participant in Node: enrols with $ATOLL_JOIN_TOKEN, keeps its identity in the folder of the first argument, and adds 1
// to every weight. What each part has to do stands in docs/protocol.md.
'use strict';
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const wire = require('./wire');

const STATE = process.argv[2];
const ENCODINGS = [wire.Encoding.FLOAT32, wire.Encoding.FLOAT16];
const Recovery = { REPEAT: 1, CHANGE: 2, NEXT_TASK: 3, ENROL: 4 };
const Verdict = { ACCEPTED: 1, DECLINED: 2, FAILED: 3 };
const INLINE_BYTES = 32 * 1024;
const EXAMPLES = 7;
const CALL_S = 30;

const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));
const nameOf = (key) => `${key.run}/${key.round}.${key.attempt}`;
const method = (service, name) => `/atoll.wire.v1.${service}/${name}`;
const same = (raw) => raw;
const deadline = (seconds) => ({ deadline: Date.now() + 1000 * seconds });

class Abandoned extends Error {}
class Damaged extends Error {}

// -- calls and their errors ------------------------------------------------------------------------------------------

function recoveryOf(error) {
  if (error instanceof Damaged) return { recovery: Recovery.REPEAT, afterS: 0 };
  const [raw] = error.metadata?.get('atoll-error-bin') ?? [];
  if (raw) {
    const { code, recovery, retry_after_s: afterS } = wire.unpack('ErrorDetail', raw);
    return { recovery, afterS, code };
  }
  const { UNAUTHENTICATED, PERMISSION_DENIED, UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED, ABORTED } = grpc.status;
  const { INTERNAL, UNKNOWN, RESOURCE_EXHAUSTED } = grpc.status;
  if ([UNAUTHENTICATED, PERMISSION_DENIED].includes(error.code)) return { recovery: Recovery.ENROL, afterS: 0 };
  const passing = [UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED, ABORTED, INTERNAL, UNKNOWN, RESOURCE_EXHAUSTED];
  return { recovery: passing.includes(error.code) ? Recovery.REPEAT : Recovery.NEXT_TASK, afterS: 0 };
}

const backoffS = (failures) => Math.random() * Math.min(5, 0.2 * 2 ** failures);

async function repeated(attempt, task) {
  for (let failures = 0; ; failures += 1) {
    if (task?.abandoned.aborted) throw new Abandoned();
    try {
      return await attempt(failures);
    } catch (error) {
      const { recovery, afterS } = recoveryOf(error);
      if (error instanceof Abandoned || recovery !== Recovery.REPEAT) throw error;
      await sleep(Math.max(afterS, backoffS(failures)));
    }
  }
}

function unary(client, service, name, fields) {
  return new Promise((done, failed) => {
    const answered = (error, raw) => (error ? failed(error) : done(wire.unpack(`${name}Response`, raw)));
    const request = wire.pack(`${name}Request`, fields);
    client.makeUnaryRequest(method(service, name), same, same, request, new grpc.Metadata(), deadline(CALL_S), answered);
  });
}

// -- identity --------------------------------------------------------------------------------------------------------

const newKey = () =>
  crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey.export({ type: 'pkcs8', format: 'pem' });

async function enrolled(text) {
  const file = path.join(STATE, 'identity.json');
  if (fs.existsSync(file)) return JSON.parse(fs.readFileSync(file));
  fs.mkdirSync(STATE, { recursive: true });
  const keyFile = path.join(STATE, 'key.pem'); // stored before the first try: a lost answer is asked for with the same key
  if (!fs.existsSync(keyFile)) fs.writeFileSync(keyFile, newKey(), { mode: 0o600 });
  const key = fs.readFileSync(keyFile, 'utf8');
  const token = wire.readToken(text);
  const client = new grpc.Client(token.address, grpc.credentials.createSsl(Buffer.from(wire.pem('CERTIFICATE', token.ca))));
  const request = { token_id: token.id, secret: token.secret, csr_pem: wire.certificateRequest(key) };
  const answer = await repeated(() => unary(client, 'EnrolmentService', 'Enrol', request));
  client.close();
  return stored({
    key, certificate: String(answer.certificate_pem), ca: String(answer.ca_certificate_pem), address: answer.server_address,
  });
}

function stored(identity) {
  fs.writeFileSync(path.join(STATE, 'identity.json'), JSON.stringify(identity), { mode: 0o600 });
  return identity;
}

function connected({ address, ca, key, certificate }) {
  return new grpc.Client(address, grpc.credentials.createSsl(Buffer.from(ca), Buffer.from(key), Buffer.from(certificate)), {
    'grpc.use_local_subchannel_pool': 1,
    'grpc.keepalive_time_ms': 10_000,
    'grpc.max_receive_message_length': 64 << 20,
    'grpc.initial_reconnect_backoff_ms': 100,
    'grpc.max_reconnect_backoff_ms': 2_000,
  });
}

// -- a task ----------------------------------------------------------------------------------------------------------

async function download(task, blob) {
  const { manifest } = await repeated(() => unary(task.client(), 'TransferService', 'GetManifest', { blob }), task);
  const size = manifest.size_bytes;
  const digests = [];
  for (let at = 0; at < manifest.chunk_digests.length; at += 32) digests.push(manifest.chunk_digests.subarray(at, at + 32));
  if (wire.blobName(size, manifest.chunk_bytes, digests) !== blob) throw new Error('the manifest of another blob');
  const chunks = [];
  await repeated(
    () =>
      new Promise((done, failed) => {
        const request = wire.pack('DownloadRequest', { blob, first_chunk: chunks.length });
        const path_ = method('TransferService', 'Download');
        const call = task.client().makeServerStreamRequest(path_, same, same, request, new grpc.Metadata(), {});
        call.on('data', (raw) => {
          const { index, payload } = wire.unpack('DownloadResponse', raw);
          if (index === chunks.length && wire.digest(payload).equals(digests[index])) chunks.push(payload);
          else {
            failed(new Damaged(`chunk ${index} does not match its digest`));
            call.cancel();
          }
        });
        call.on('error', failed);
        call.on('end', () => (chunks.length === digests.length ? done() : failed(new Damaged('the stream ended early'))));
      }),
    task,
  );
  return Buffer.concat(chunks);
}

function trained(model) {
  const global = Array.from({ length: model.length / 4 }, (_, i) => model.readFloatLE(4 * i));
  return global.map((weight) => Math.fround(Math.fround(weight + 1) - weight)); // local - global
}

function cut(values, encoding, chunkBytes) {
  const step = Math.floor(chunkBytes / (encoding === wire.Encoding.FLOAT32 ? 4 : 2));
  const chunks = [];
  for (let offset = 0; offset < values.length; offset += step) {
    const part = values.slice(offset, offset + step);
    const payload = wire.encode(part, encoding);
    const range = { offset, block: part.length, stride: part.length, count: 1 };
    chunks.push({ header: { range, encoding, digest: wire.digest(payload) }, payload });
  }
  return chunks;
}

const framed = (chunk, key) => wire.pack('UploadRequest', { ...(key && { key }), chunk: chunk.header, payload: chunk.payload });

function send(task, chunks, key) {
  return new Promise((done, failed) => {
    const answered = (error) => (error ? failed(error) : done());
    const call = task.client().makeClientStreamRequest(
      method('TransferService', 'Upload'), same, same, new grpc.Metadata(), deadline(300), answered);
    chunks.forEach((chunk, place) => call.write(framed(chunk, place === 0 ? key : null)));
    call.end();
  });
}

async function lacking(task, chunks, key) {
  const { held } = await unary(task.client(), 'TransferService', 'GetUploadStatus', { key });
  const runs = held.filter((one) => one.count === 1 || one.stride === one.block);
  const covers = (one, { offset, block }) => one.offset <= offset && offset + block <= one.offset + one.block * one.count;
  return chunks.filter(({ header }) => !runs.some((one) => covers(one, header.range)));
}

async function delivered(task, invitation, chunks, chunkBytes) {
  const upload_id = crypto.randomBytes(16).toString('hex');
  const key = { round: invitation.key, upload_id, tensor_set: 'model' };
  const digest = wire.updateDigest(chunks.map((chunk) => chunk.header));
  const report = { round: invitation.key, upload_id, digest, weight: EXAMPLES, metrics: { loss: 0 } };
  const uploaded = (ask) =>
    repeated(async (failures) => {
      const missing = ask || failures ? await lacking(task, chunks, key) : chunks;
      if (missing.length) await send(task, missing, key);
    }, task);
  if (chunks.length === 1 && chunks[0].payload.length <= INLINE_BYTES) report.update = framed(chunks[0], key);
  else await uploaded(false);
  for (let repairs = 0; ; repairs += 1) {
    try {
      return await repeated(() => unary(task.client(), 'TransferService', 'Report', report), task);
    } catch (error) {
      if (recoveryOf(error).code !== 'upload.incomplete' || repairs === 3) throw error;
      await uploaded(true);
    }
  }
}

async function perform(task, invitation, chunkBytes) {
  const [model] = invitation.inputs;
  const comesAlong = model.content.length && wire.blobName(model.content.length, model.chunk_bytes, digestsOf(model)) === model.blob;
  const weights = comesAlong ? model.content : await download(task, model.blob);
  await Promise.race([sleep(invitation.settings.seconds?.number ?? 0), task.stopped]);
  if (task.abandoned.aborted) throw new Abandoned();
  return delivered(task, invitation, cut(trained(weights), invitation.encoding, chunkBytes), chunkBytes);
}

function digestsOf({ content, chunk_bytes: step }) {
  return Array.from({ length: Math.ceil(content.length / step) }, (_, i) => wire.digest(content.subarray(i * step, (i + 1) * step)));
}

// -- the check-in stream ---------------------------------------------------------------------------------------------

class Participant {
  constructor(identity) {
    this.identity = identity;
    this.client = connected(identity);
    this.task = null;
    this.finished = new Set();
  }

  async stay() {
    for (let failures = 0; ; ) {
      const { welcomed, recovery, afterS } = await this.checkIn();
      if (recovery === Recovery.ENROL) return;
      failures = welcomed ? 0 : failures + 1;
      await sleep(Math.max(afterS, backoffS(failures)));
    }
  }

  // Holds one stream; how it ended.
  checkIn() {
    return new Promise((done) => {
      const found = { welcomed: false, recovery: Recovery.REPEAT, afterS: 0 };
      const stream = this.client.makeBidiStreamRequest(
        method('ParticipationService', 'CheckIn'), same, same, new grpc.Metadata(), {});
      this.say = (fields) => stream.write(wire.pack('CheckInRequest', fields));
      const resuming = this.task ? [this.task.key] : [];
      this.say({ hello: { protocol: 1, client_version: 'node', examples: EXAMPLES, encodings: ENCODINGS, resuming } });
      stream.on('data', (raw) => {
        const message = wire.unpack('CheckInResponse', raw);
        if (message.welcome) {
          found.welcomed = true;
          this.chunkBytes = message.welcome.chunk_bytes || 2 << 20;
          this.renew(message.welcome.certificate_remaining_s, stream).catch(() => {});
        } else if (message.participate) this.invited(message.participate);
        else if (message.stop) this.stop(message.stop);
        else if (message.come_back) found.afterS = message.come_back.after_s;
      });
      stream.on('error', (error) => done({ ...found, ...recoveryOf(error) }));
      stream.on('end', () => {
        stream.end();
        done(found);
      });
    });
  }

  reply(key, verdict, reason = '') {
    this.say({ reply: { key, verdict, reason } });
  }

  invited(invitation) {
    const { key } = invitation;
    if (this.finished.has(nameOf(key))) return;
    if (this.task && nameOf(this.task.key) === nameOf(key)) this.reply(key, Verdict.ACCEPTED);
    else if (this.task && this.task.key.run !== key.run) this.reply(key, Verdict.DECLINED, 'busy');
    else if (!ENCODINGS.includes(invitation.encoding)) this.reply(key, Verdict.DECLINED, `encoding ${invitation.encoding}`);
    else if (invitation.kind !== 1 || invitation.ranges.length) this.reply(key, Verdict.DECLINED, 'not this kind of task');
    else this.begin(invitation);
  }

  async begin(invitation) {
    const { key } = invitation;
    this.task?.abandon();
    const abandoning = new AbortController();
    let wake;
    const stopped = new Promise((resolve) => { wake = resolve; });
    const abandon = () => { abandoning.abort(); wake(); };
    const task = { key, abandoned: abandoning.signal, stopped, abandon, client: () => this.client };
    this.task = task;
    this.reply(key, Verdict.ACCEPTED);
    try {
      await perform(task, invitation, this.chunkBytes);
    } catch (error) {
      const { recovery } = recoveryOf(error);
      if (!(error instanceof Abandoned) && recovery !== Recovery.NEXT_TASK) this.reply(key, Verdict.FAILED, String(error));
    }
    this.finished.add(nameOf(key));
    if (this.task === task) this.task = null;
  }

  stop({ key }) {
    if (this.task && nameOf(this.task.key) === nameOf(key)) this.task.abandon();
  }

  async renew(remainingS, stream) {
    const { validFrom, validTo } = new crypto.X509Certificate(this.identity.certificate);
    const lifetimeS = (Date.parse(validTo) - Date.parse(validFrom)) / 1000;
    const dueS = remainingS - lifetimeS / 3;
    if (remainingS < 0 || dueS > 86_400) return;
    await sleep(Math.max(0, dueS));
    const key = newKey();
    const request = { csr_pem: wire.certificateRequest(key) };
    const answer = await repeated(() => unary(this.client, 'RenewalService', 'Renew', request));
    const ca = String(answer.ca_certificate_pem) || this.identity.ca;
    this.identity = stored({ ...this.identity, key, certificate: String(answer.certificate_pem), ca });
    this.client = connected(this.identity);
    stream.end(); // the next stream is opened with the new certificate
  }
}

enrolled(process.env.ATOLL_JOIN_TOKEN)
  .then((identity) => new Participant(identity).stay())
  .then(() => process.exit(4));
