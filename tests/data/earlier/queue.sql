BEGIN TRANSACTION;
CREATE TABLE bodies (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
INSERT INTO "bodies" VALUES(1,X'32');
INSERT INTO "bodies" VALUES(2,X'31');
INSERT INTO "bodies" VALUES(3,X'31');
INSERT INTO "bodies" VALUES(4,X'31');
INSERT INTO "bodies" VALUES(5,X'31');
INSERT INTO "bodies" VALUES(6,X'31');
INSERT INTO "bodies" VALUES(7,X'31');
INSERT INTO "bodies" VALUES(8,X'31');
INSERT INTO "bodies" VALUES(10,X'31');
INSERT INTO "bodies" VALUES(11,X'31');
INSERT INTO "bodies" VALUES(12,X'31');
INSERT INTO "bodies" VALUES(13,X'31');
INSERT INTO "bodies" VALUES(14,X'31');
INSERT INTO "bodies" VALUES(15,X'31');
INSERT INTO "bodies" VALUES(16,X'31');
CREATE TABLE deliveries (
        queue INTEGER NOT NULL, job_id TEXT NOT NULL, last_fence INTEGER NOT NULL, first_fence INTEGER NOT NULL,
        fence INTEGER NOT NULL, output TEXT NOT NULL, lease_until REAL NOT NULL,
        PRIMARY KEY (queue, job_id, last_fence)) WITHOUT ROWID;
CREATE TABLE host (boot_id TEXT NOT NULL);
INSERT INTO "host" VALUES('another boot');
CREATE TABLE jobs (
        seq INTEGER PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL, service TEXT NOT NULL,
        rank INTEGER NOT NULL, since REAL NOT NULL, lease_until REAL, fence INTEGER NOT NULL, first_fence INTEGER,
        claim_run INTEGER, holder TEXT, claimed REAL, claim_ended REAL, cause TEXT,
        run INTEGER NOT NULL DEFAULT 1, alone INTEGER NOT NULL DEFAULT 0, cancelling INTEGER NOT NULL DEFAULT 0,
        size INTEGER NOT NULL, due REAL, not_before REAL, deadline REAL, created REAL NOT NULL, ended REAL,
        id TEXT NOT NULL, job_key TEXT, digest TEXT NOT NULL, content_type TEXT NOT NULL, accept TEXT NOT NULL,
        input_url TEXT, output TEXT, attempts TEXT NOT NULL DEFAULT '{}', history TEXT, problem TEXT,
        result_type TEXT, turn INTEGER NOT NULL DEFAULT 0, elsewhere INTEGER NOT NULL DEFAULT 0, host TEXT NOT NULL DEFAULT '');
INSERT INTO "jobs" VALUES(1,1,3,'',0,1.79598984202926445011e+09,NULL,1,1,1,'old',1.79598984203334593773e+09,1.79598984204311943051e+09,'succeeded',1,0,0,1,NULL,NULL,NULL,1.79598984202926445011e+09,1.79598984204311943051e+09,'succeeded',NULL,'succeeded','application/json','application/json',NULL,NULL,'{}',NULL,NULL,'application/json',1,0,'');
INSERT INTO "jobs" VALUES(2,1,4,'',0,1.79598984204630446434e+09,NULL,1,1,1,'old',1.79598984204912829392e+09,1.79598984206520438187e+09,'dead',1,0,0,1,NULL,NULL,NULL,1.79598984204630446434e+09,1.79598984206520438187e+09,'dead-by-input',NULL,'dead-by-input','application/json','application/json',NULL,NULL,'{"input":1}',NULL,'{"type":"builtins.ValueError","message":"boom","traceback":"a traceback"}',NULL,2,0,'');
INSERT INTO "jobs" VALUES(3,1,4,'',0,1.79598984206910252574e+09,NULL,3,1,1,'old',1.79598984209645056719e+09,1.79598984210104417797e+09,'dead',1,1,0,1,NULL,NULL,NULL,1.79598984206910252574e+09,1.79598984210104417797e+09,'dead-by-crash',NULL,'dead-by-crash','application/json','application/json',NULL,NULL,'{"crash":2}','[{"run":1,"fence":1,"holder":"old","claimed":1795989842.0771687,"ended":1795989842.085091,"cause":"crash"},{"run":1,"fence":2,"holder":"old","claimed":1795989842.0891476,"ended":1795989842.0931113,"cause":"crash"}]','{"type":"builtins.ValueError","message":"boom","traceback":"a traceback"}',NULL,3,0,'');
INSERT INTO "jobs" VALUES(4,1,4,'',0,1.79598984210909223555e+09,NULL,5,1,1,'h3',1.79598984233934354779e+09,1.79598984239950466151e+09,'dead',1,1,0,1,NULL,NULL,NULL,1.79598984210909223555e+09,1.79598984239950466151e+09,'dead-by-lost',NULL,'dead-by-lost','application/json','application/json',NULL,NULL,'{"lost":5}','[{"run":1,"fence":1,"holder":"old","claimed":1795989842.1172326,"ended":1795989842.1754081,"cause":"lost"},{"run":1,"fence":2,"holder":"h0","claimed":1795989842.1754081,"ended":1795989842.2329206,"cause":"lost"},{"run":1,"fence":3,"holder":"h1","claimed":1795989842.2329206,"ended":1795989842.2874823,"cause":"lost"},{"run":1,"fence":4,"holder":"h2","claimed":1795989842.2874823,"ended":1795989842.3393435,"cause":"lost"}]','{"type":"","message":"the lease ran out without a word of its holder","traceback":""}',NULL,4,0,'');
INSERT INTO "jobs" VALUES(5,1,1,'',0,1.79598984295311307909e+09,NULL,1,NULL,1,'old',1.79598984241728687289e+09,1.79598984242484021192e+09,'dead',2,0,0,1,NULL,NULL,NULL,1.79598984240593385688e+09,NULL,'retried',NULL,'retried','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,5,0,'');
INSERT INTO "jobs" VALUES(6,1,6,'',0,1.79598984244520807262e+09,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1,0,0,1,NULL,NULL,1.79598984254515552519e+09,1.79598984244520807262e+09,1.79598984254515552519e+09,'expired',NULL,'e','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,6,0,'');
INSERT INTO "jobs" VALUES(7,1,5,'',0,1.79598984269149756437e+09,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1,0,0,1,NULL,NULL,NULL,1.79598984269149756437e+09,1.79598984274158740039e+09,'cancelled',NULL,'c','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,7,0,'');
INSERT INTO "jobs" VALUES(8,1,0,'',0,1.79598984275717115394e+09,NULL,1,1,1,'old',1.7959898427772927284e+09,1.79598984278918504713e+09,'transfer',1,0,0,1,283828366.968296,2.07981384278918504725e+09,NULL,1.79598984275717115394e+09,NULL,'transfer',NULL,'transfer','application/json','application/json',NULL,NULL,'{"transfer":3}',NULL,'{"type":"builtins.ValueError","message":"boom","traceback":"a traceback"}',NULL,9,0,'');
INSERT INTO "jobs" VALUES(10,1,0,'',0,1.79598984279168963429e+09,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1,0,0,1,2.838283669707994461e+08,2.07981384279168963428e+09,NULL,1.79598984279168963429e+09,NULL,'scheduled',NULL,'s','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,10,0,'');
INSERT INTO "jobs" VALUES(11,1,2,'',0,1.79598984279706430436e+09,4396.987316734,1,1,1,'old',1.79598984280820751194e+09,NULL,NULL,1,0,0,1,NULL,NULL,NULL,1.79598984279706430436e+09,NULL,'leased',NULL,'leased','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,11,0,'');
INSERT INTO "jobs" VALUES(12,1,2,'',0,1.79598984281725406646e+09,4397.050421906,2,1,1,'other',1.79598984287131285667e+09,NULL,NULL,1,1,0,1,NULL,NULL,NULL,1.79598984281725406646e+09,NULL,'lost',NULL,'lost','application/json','application/json',NULL,NULL,'{"lost":1}','[{"run":1,"fence":1,"holder":"old","claimed":1795989842.8180034,"ended":1795989842.8713129,"cause":"lost"}]','{"type":"","message":"the lease ran out without a word of its holder","traceback":""}',NULL,12,0,'');
INSERT INTO "jobs" VALUES(13,1,2,'',0,1.79598984287329602235e+09,4397.066470203,1,1,1,'old',1.79598984288736128805e+09,NULL,NULL,1,0,1,1,NULL,NULL,NULL,1.79598984287329602235e+09,NULL,'to-be-cancelled',NULL,'to-be-cancelled','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,13,0,'');
INSERT INTO "jobs" VALUES(14,1,1,'',0,1.79598984290912175179e+09,NULL,1,1,1,'old',1.7959898429171807766e+09,1.7959898429370815754e+09,'crash',1,1,0,1,NULL,NULL,NULL,1.79598984290912175179e+09,NULL,'crash',NULL,'crash','application/json','application/json',NULL,NULL,'{"crash":1}',NULL,'{"type":"builtins.ValueError","message":"boom","traceback":"a traceback"}',NULL,14,0,'');
INSERT INTO "jobs" VALUES(15,1,1,'',0,1.79598984292105984684e+09,NULL,1,1,1,'old',1.79598984292914938924e+09,1.79598984294181156151e+09,'released',1,0,0,1,NULL,NULL,NULL,1.79598984292105984684e+09,NULL,'released',NULL,'r','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,15,0,'');
INSERT INTO "jobs" VALUES(16,1,1,'',0,1.79598984296106529232e+09,NULL,0,NULL,NULL,NULL,NULL,NULL,NULL,1,0,0,1,NULL,NULL,NULL,1.79598984296106529232e+09,NULL,'waiting','k','w','application/json','application/json',NULL,NULL,'{}',NULL,NULL,NULL,16,0,'');
CREATE TABLE queues (
        number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, paused INTEGER NOT NULL DEFAULT 0,
        seconds_per_job REAL NOT NULL DEFAULT 0, first_fence INTEGER NOT NULL DEFAULT 0, last_turn INTEGER NOT NULL DEFAULT 0);
INSERT INTO "queues" VALUES(1,'q',0,0.5,0,9);
CREATE UNIQUE INDEX ids ON jobs (queue, id);
CREATE UNIQUE INDEX job_keys ON jobs (queue, job_key) WHERE job_key IS NOT NULL;
CREATE INDEX scheduled ON jobs (queue, due, not_before) WHERE state = 0;
CREATE INDEX leased ON jobs (queue, lease_until) WHERE state = 2;
CREATE INDEX ended ON jobs (queue, state, ended) WHERE state > 2;
CREATE INDEX deadlines ON jobs (queue, deadline) WHERE state < 2 AND deadline IS NOT NULL;
CREATE INDEX undelivered ON deliveries (queue, lease_until);
CREATE INDEX waiting ON jobs (queue, service, elsewhere, rank, turn, since) WHERE state = 1;
CREATE INDEX waiting_at ON jobs (queue, service, host, rank, turn) WHERE state = 1 AND elsewhere = 1;
COMMIT;
