/* The claim protocol of one key, small enough to look at every interleaving.
 *
 * Workers claim, work and end, on a store that decides atomically. Requests of a worker may be
 * lost, answered into the void, or arrive again, late, after anything else (the network keeps a copy of
 * any one request at a time). A worker may become a zombie: it stands still with its
 * claim while its lease runs out, and then goes on as if nothing had happened. An operator may
 * release the key. The lease is abstract time: it may run out whenever a worker holds one.
 *
 * Ghosts (variables that the protocol does not see) say what may never happen:
 *   G1  two workers hold live claims                 (two live owners)
 *   G2  a second result is recorded                  (one result)
 *   G3  a worker that is not the present owner writes (stale owners change nothing)
 *   G4  a fence is given out twice                   (fences grow)
 *
 * -DBROKEN=1  complete compares nothing      -DBROKEN=2  release and fail compare nothing
 * -DBROKEN=3  a takeover keeps the fence     -DBROKEN=4  an operator's release keeps owner and fence
 * -DBROKEN=5  a live lease can be taken over
 */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef CLAIMS
#define CLAIMS 2   /* how often each worker may claim, each time with a fresh owner token */
#endif
#ifndef BROKEN
#define BROKEN 0
#endif

#define NO_OWNER 0
mtype = { absent, working, released, done };
mtype = { none, claim_, complete_, fail_ };

/* the store's row */
mtype state = absent;
byte owner = NO_OWNER;       /* token: worker * CLAIMS + number, from 1 */
byte fence = 0;
bool lease = false;        /* is the lease of the present claim running? */

/* what the network may deliver once more, however late: any one request at a time */
mtype late_kind = none;
byte late_owner = NO_OWNER;
byte late_fence = 0;

inline keep_copy(kind, o, f) {
    if
    :: late_kind == none -> late_kind = kind; late_owner = o; late_fence = f
    :: skip
    fi
}

/* ghosts */
byte holder = NO_OWNER;      /* token of the last claim that was granted and not ended */
bool holds = false;        /* …and whose lease still runs */
byte holders_fence = 0;
byte results = 0;
byte top = 0;

#define MINE(o, f) (owner == (o) && fence == (f))

/* One atomic decision of the store. `won` is the answer: the fence, or 0. */
inline store_claim(o, won) {
    won = 0;
    if
    :: state == done -> skip                                  /* replay */
    :: state == working && owner == (o) -> won = fence        /* asked again: the same fence */
    :: state == working && owner != (o) && lease && BROKEN != 5 -> skip   /* busy */
    :: else ->
        assert(!(holds && holder != (o)));                    /* G1 */
        if
        :: BROKEN == 3 && state == working -> skip
        :: else -> fence = fence + 1
        fi;
        assert(fence > top);                                  /* G4 */
        top = fence;
        state = working; owner = (o); lease = true; won = fence;
        holder = (o); holds = true; holders_fence = fence
    fi
}

inline store_complete(o, f) {
    if
    :: state == working && (MINE(o, f) || BROKEN == 1) ->
        assert(holder == (o) && holders_fence == (f));        /* G3 */
        assert(results == 0);                                 /* G2 */
        results = results + 1;
        state = done; lease = false; holds = false; holder = NO_OWNER
    :: else -> skip                                           /* lost, or said before */
    fi
}

inline store_fail(o, f) {
    if
    :: state == working && (MINE(o, f) || BROKEN == 2) ->
        assert(holder == (o) && holders_fence == (f));        /* G3 */
        state = released; lease = false; holds = false; holder = NO_OWNER
    :: else -> skip
    fi
}

proctype Worker(byte me) {
    byte number = 0;
    byte token = 0;
    byte mine = 0;
    bool asked = false;
again:
    do
    :: number < CLAIMS ->
        number = number + 1;
        token = me * CLAIMS + number;
        asked = false;
ask:
        atomic {
            mine = 0;
            if
            :: true -> store_claim(token, mine)                      /* it arrives */
            :: skip                                           /* it is lost */
            fi;
            keep_copy(claim_, token, 0);
            if
            :: skip                                           /* the answer arrives */
            :: mine = 0                                       /* the answer is lost */
            fi
        };
        if
        :: mine == 0 ->
            if
            :: !asked -> asked = true; goto ask               /* again, with the same owner */
            :: token = 0; asked = false; goto again           /* give up; a ghost may stay */
            fi
        :: else -> skip
        fi;
        /* The handler runs. The worker may stand still here for as long as it takes. */
        if
        :: atomic {                                           /* it has a value */
            if
            :: true -> store_complete(token, mine)
            :: skip
            fi;
            keep_copy(complete_, token, mine)
           }
        :: atomic {                                           /* it failed */
            if
            :: true -> store_fail(token, mine)
            :: skip
            fi;
            keep_copy(fail_, token, mine)
           }
        :: skip                                               /* it died */
        fi;
        token = 0; mine = 0; asked = false
    :: else -> break
    od
}

/* Time: a lease that is not renewed runs out, whatever its worker believes. */
proctype Time() {
    do
    :: atomic { lease -> lease = false; holds = false }
    od
}

/* The network delivers its copy, however late. No worker waits for the answer. */
proctype Network() {
    byte unheard = 0;
    do
    :: atomic {
        late_kind != none ->
        if
        :: late_kind == claim_ -> store_claim(late_owner, unheard)
        :: late_kind == complete_ -> store_complete(late_owner, late_fence)
        :: late_kind == fail_ -> store_fail(late_owner, late_fence)
        fi;
        late_kind = none; late_owner = NO_OWNER; late_fence = 0; unheard = 0
       }
    od
}

/* An operator lets the next delivery run, once. The owner loses its claim, by a new fence. */
proctype Operator() {
    atomic {
        state == working || state == released ->
        if
        :: BROKEN == 4 -> skip
        :: else -> fence = fence + 1; top = fence; owner = NO_OWNER; state = released; lease = false
        fi;
        holds = false; holder = NO_OWNER
    }
}

init {
    byte w;
    atomic {
        for (w : 0 .. WORKERS - 1) { run Worker(w) }
        run Time();
        run Network();
        run Operator()
    }
}
