//! Three candidates whose clocks agree only in their pace, calls that arrive late or never, watches that lag, any candidate
//! frozen at any moment.

use proptest::prelude::*;

use super::*;

const PLAYERS: usize = 3;

/// What happens next; the number is the candidate.
#[derive(Debug, Clone)]
enum Move {
    Pass(u64),
    /// It does what it does when it runs: gives up on calls that took too long, plans, sends.
    Turn(usize),
    /// Its call takes effect.
    Arrive(usize),
    /// It reads the answer.
    Answer(usize),
    /// Its call, or the answer to it, is lost.
    Lose(usize),
    /// A call that its sender has given up on takes effect.
    Late(usize),
    /// Its watch shows what has happened.
    Show(usize),
    /// It gives the Lease back, and becomes a candidate again later.
    Resign(usize),
}

fn any_move() -> impl Strategy<Value = Move> {
    let player = 0..PLAYERS;
    prop_oneof![
        3 => (1..400u64).prop_map(Move::Pass),
        1 => (400..20_000u64).prop_map(Move::Pass),
        6 => player.clone().prop_map(Move::Turn),
        6 => player.clone().prop_map(Move::Arrive),
        6 => player.clone().prop_map(Move::Answer),
        1 => player.clone().prop_map(Move::Lose),
        1 => (0..8usize).prop_map(Move::Late),
        4 => player.clone().prop_map(Move::Show),
        1 => player.prop_map(Move::Resign),
    ]
}

struct Player {
    election: Election,
    /// Its steady clock is ahead of the world's by this.
    ahead: Duration,
    flight: Option<Flight>,
    shown: usize,
}

struct Flight {
    call: Call,
    sent: Duration,
    until: Duration,
    fate: Fate,
}

/// How a call ended.
enum Fate {
    OnTheWay,
    Answered(Result<Answer, Refusal>),
    /// The call, or the answer to it.
    Lost,
}

struct World {
    server: Server,
    now: Duration,
    players: Vec<Player>,
    late: Vec<Call>,
}

impl World {
    fn new() -> Self {
        let player = |number: usize| Player {
            election: Election::new(seat(&format!("player-{number}"))),
            ahead: Duration::from_secs(1000 * number as u64 + 7),
            flight: None,
            shown: 0,
        };
        Self {
            server: Server::default(),
            now: Duration::ZERO,
            players: (0..PLAYERS).map(player).collect(),
            late: Vec::new(),
        }
    }

    fn time(&self, player: usize) -> Now {
        let steady = self.now + self.players[player].ahead;
        // Wall clocks are wrong by years.
        Now { wall: Timestamp::UNIX_EPOCH + Duration::from_secs(100_000_000 * player as u64) + self.now, steady }
    }

    fn make(&mut self, next: &Move) {
        match *next {
            Move::Pass(milliseconds) => self.now += Duration::from_millis(milliseconds),
            Move::Turn(player) => self.turn(player),
            Move::Arrive(player) => {
                if let Some(Flight { call, fate: fate @ Fate::OnTheWay, .. }) = &mut self.players[player].flight {
                    *fate = Fate::Answered(self.server.call(call));
                }
            }
            Move::Answer(player) => self.answer(player),
            Move::Lose(player) => {
                if let Some(flight) = &mut self.players[player].flight {
                    flight.fate = Fate::Lost;
                }
            }
            Move::Late(number) => {
                if !self.late.is_empty() {
                    let call = self.late.swap_remove(number % self.late.len());
                    let _ = self.server.call(&call);
                }
            }
            Move::Show(player) => {
                let steady = self.time(player).steady;
                let Player { election, shown, .. } = &mut self.players[player];
                for event in &self.server.log[*shown..] {
                    election.see(change(event), steady);
                }
                *shown = self.server.log.len();
            }
            Move::Resign(player) => self.resign(player),
        }
    }

    fn turn(&mut self, player: usize) {
        let now = self.time(player);
        let Player { election, flight, .. } = &mut self.players[player];
        if let Some(Flight { until, .. }) = flight {
            if now.steady < *until {
                return;
            }
            let Some(Flight { call, sent, fate, .. }) = flight.take() else { return };
            let given_up = Err(Refusal::Unknown("no answer in time".to_owned()));
            election.settle(&call, sent, now.steady, given_up);
            self.late.extend(matches!(fate, Fate::OnTheWay).then_some(call));
            return;
        }
        match election.plan(now) {
            Step::Wait(_) => {}
            Step::Lost => election.lose(),
            Step::Do { call, within } => {
                *flight = Some(Flight { call, sent: now.steady, until: now.steady + within, fate: Fate::OnTheWay });
            }
        }
    }

    /// A candidate also reads an answer that came too late: it slept.
    fn answer(&mut self, player: usize) {
        let now = self.time(player).steady;
        let Player { election, flight, .. } = &mut self.players[player];
        let answered = flight.take_if(|flight| matches!(flight.fate, Fate::Answered(_)));
        if let Some(Flight { call, sent, fate: Fate::Answered(done), .. }) = answered {
            election.settle(&call, sent, now, done);
        }
    }

    /// As the task does it: only after its last call, and it stops leading before it releases the Lease.
    fn resign(&mut self, player: usize) {
        let now = self.time(player);
        let Player { election, flight, .. } = &mut self.players[player];
        if flight.is_some() {
            return;
        }
        let led = election.hold().is_some();
        election.lose();
        if let Some(call) = election.plan_release(now, led) {
            *flight = Some(Flight {
                call,
                sent: now.steady,
                until: now.steady + Duration::from_secs(2),
                fate: Fate::OnTheWay,
            });
        }
    }

    fn leaders(&self) -> Vec<usize> {
        let leads = |player: &usize| {
            let now = self.time(*player).steady;
            self.players[*player].election.hold().is_some_and(|hold| now < hold.until)
        };
        (0..PLAYERS).filter(leads).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_lead_at_a_time_whatever_is_late_or_lost_and_one_leads_once_nothing_is(
        moves in proptest::collection::vec(any_move(), 0..300)
    ) {
        let mut world = World::new();
        for next in &moves {
            world.make(next);
            prop_assert!(world.leaders().len() <= 1, "{:?} lead after {next:?}", world.leaders());
        }
        // All candidates run again, nothing is lost.
        for tick in 0..160 {
            world.make(&Move::Pass(125));
            for player in 0..PLAYERS {
                for next in [Move::Late(0), Move::Turn(player), Move::Arrive(player), Move::Answer(player), Move::Show(player)] {
                    world.make(&next);
                    prop_assert!(world.leaders().len() <= 1, "{:?} lead after {next:?}", world.leaders());
                }
            }
            // A Lease, a try that failed right before, and a little.
            let peace = tick * 125;
            prop_assert!(peace < 18_000 || world.leaders().len() == 1, "no process leads after {peace} ms");
        }
    }
}
