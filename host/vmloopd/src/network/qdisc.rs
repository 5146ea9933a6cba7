// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a qdisc on an interface of the host would do to frames that go past it.

use rtnetlink::packet_core::{Nla, NlasIterator};
use rtnetlink::packet_route::tc::{TcAttribute, TcOption};

/// What a qdisc is there for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It only queues, and a channel has a queue of its own.
    Queues,
    /// It has classifiers look at frames.
    Classifies,
    /// It shapes, delays, loses or orders frames, or its classes may; its kind.
    Shapes(String),
}

/// Kinds that are there for classifiers only.
const CLASSIFYING: [&str; 2] = ["clsact", "ingress"];
/// Kinds that only queue. The guests' modules have the same list (`shaping.c`), and
/// see what is below a `mq`, which comes as a qdisc of its own here.
const QUEUEING: [&str; 16] = [
    "noop",
    "noqueue",
    "pfifo",
    "bfifo",
    "pfifo_fast",
    "pfifo_head_drop",
    "fq_codel",
    "codel",
    "sfq",
    "fq_pie",
    "pie",
    "red",
    "choke",
    "sfb",
    "hhf",
    "mq",
];
/// Attribute of `fq`: bytes per second of each flow.
const FQ_FLOW_MAX_RATE: u16 = 7;

/// Says what a qdisc is there for, from the attributes of its message.
pub fn purpose(attributes: &[TcAttribute]) -> Purpose {
    let kind = attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Kind(kind) => Some(kind.as_str()),
        _ => None,
    });
    match kind {
        Some(kind) if CLASSIFYING.contains(&kind) => Purpose::Classifies,
        Some(kind) if QUEUEING.contains(&kind) => Purpose::Queues,
        // It paces sockets of the host that ask for it; guests have none there.
        Some("fq") if !limits_flows(attributes) => Purpose::Queues,
        kind => Purpose::Shapes(kind.unwrap_or("?").to_owned()),
    }
}

/// Whether a `fq` has a rate for every flow.
fn limits_flows(attributes: &[TcAttribute]) -> bool {
    let is_limit = |option: &TcOption| match option {
        TcOption::Other(all) => {
            let mut value = vec![0; all.value_len()];
            all.emit_value(&mut value);
            NlasIterator::new(&value[..]).flatten().any(|one| {
                one.kind() == FQ_FLOW_MAX_RATE && one.value() != u32::MAX.to_ne_bytes().as_slice()
            })
        }
        _ => false,
    };
    attributes.iter().any(|attribute| match attribute {
        TcAttribute::Options(options) => options.iter().any(is_limit),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use rtnetlink::packet_core::DefaultNla;

    use super::*;

    fn of(kind: &str) -> Purpose {
        purpose(&[TcAttribute::Kind(kind.into())])
    }

    #[test]
    fn kinds() {
        for kind in ["noqueue", "pfifo_fast", "fq_codel", "mq", "fq"] {
            assert_eq!(of(kind), Purpose::Queues, "{kind}");
        }
        for kind in ["tbf", "netem", "htb", "hfsc", "cake", "prio", "one_to_come"] {
            assert_eq!(of(kind), Purpose::Shapes(kind.into()));
        }
        assert_eq!((of("clsact"), of("ingress")), (Purpose::Classifies, Purpose::Classifies));
        assert_eq!(purpose(&[]), Purpose::Shapes("?".into()));
    }

    #[test]
    fn fq_with_a_rate() {
        let fq = |rate: u32| {
            let mut options = vec![8, 0, 1, 0, 16, 39, 0, 0];
            options.extend([8, 0, 7, 0]);
            options.extend(rate.to_ne_bytes());
            let options = vec![TcOption::Other(DefaultNla::new(2, options))];
            purpose(&[TcAttribute::Kind("fq".into()), TcAttribute::Options(options)])
        };
        assert_eq!(fq(u32::MAX), Purpose::Queues);
        assert_eq!(fq(125_000), Purpose::Shapes("fq".into()));
    }
}
