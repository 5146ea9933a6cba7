// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The words that programs can rely on: states, kinds and reasons.
//!
//! Each is written as its variant is called, with hyphens. A word of a newer agent, or
//! one that an older agent does not say, is read as `unknown`.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

/// Makes enumerations of words, whose text is the same for people and in JSON.
macro_rules! words {
    ($($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $word:ident,)+ })+) => {$(
        $(#[$about])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, Display,
            IntoStaticStr,
        )]
        #[cfg_attr(test, derive(strum::EnumIter))]
        #[serde(rename_all = "kebab-case")]
        #[strum(serialize_all = "kebab-case")]
        pub enum $name {
            $($(#[$what])* $word,)+
            /// a word that this program does not know, or none
            #[default]
            #[serde(other)]
            Unknown,
        }
    )+};
}

words! {
    /// Whose guests an agent has.
    Hypervisor {
        /// QEMU's, by QMP
        Qemu,
        /// Xen's domains
        Xen,
    }

    /// Which policy is in force.
    PolicyState {
        /// the file, as it stands
        File,
        /// the default one, as there is no file and none was named
        None,
        /// the last one that could be read: the file cannot
        LastGood,
        /// nobody may talk: no file could be read since the agent started
        Denied,
    }

    /// What a guest is doing.
    GuestState {
        /// its devices are being plugged, or found
        Attaching,
        /// it has no modules
        Attached,
        /// its modules are there
        Ready,
        /// it was told to shut down or to suspend (Xen)
        Leaving,
        /// it is being let go of
        Detaching,
        /// an operator has detached it (Xen)
        Detached,
        /// its channels close before a migration
        Preparing,
        /// it may be migrated
        Prepared,
        /// it is being migrated
        Migrating,
        /// it was migrated, and is here no more
        Departed,
        /// it was not migrated, and takes part again
        Returning,
        /// it is being migrated to here
        Arriving,
    }

    /// What a channel is doing.
    ChannelState {
        /// there is none; only of a pair, never of a channel
        None,
        /// its ends are being made
        Plugging,
        /// it is made; not both guests use it yet
        Open,
        /// both guests use it, or could at once
        Up,
        /// it is being taken from its guests
        Closing,
        /// a guest keeps its end of it
        Stuck,
        /// the policy has taken it from its guests, and both keep it
        Revoked,
    }

    /// What a guest has said last of its end of a channel.
    EndState {
        /// nothing yet
        None,
        /// it uses it
        Up,
        /// no traffic wants it
        Idle,
        /// it has closed it
        Closed,
        /// its peer broke the protocol
        Broken,
    }

    /// What looks at frames, or says where they go.
    FilterKind {
        /// an XDP program at an interface
        Xdp,
        /// a qdisc for classifiers at an interface
        Classifier,
        /// a qdisc that may shape, at an interface
        Qdisc,
        /// an interface that is a locked port of its bridge
        Locked,
        /// a chain of nftables
        Nftables,
        /// a chain of iptables-legacy
        IptablesLegacy,
        /// a chain of ip6tables-legacy
        Ip6tablesLegacy,
        /// a chain of ebtables-legacy
        EbtablesLegacy,
        /// a rule of routing
        Rule,
        /// that is not known, as it could not be read
        Unreadable,
    }

    /// Why two guests have no channel.
    ReasonCode {
        /// the agent has just started
        Recovering,
        /// one of them has no modules, comes or goes
        Guest,
        /// the policy
        Policy,
        /// an interface that can have no channels
        Interface,
        /// they are in different networks
        Network,
        /// their ports are isolated
        Isolated,
        /// a hardware address that two guests have
        Address,
        /// a filter of the host's
        Filter,
        /// it is being closed
        Closing,
        /// one keeps memory that the policy has taken from it
        Revoked,
        /// their last one broke
        Broken,
        /// their last one failed, or lived short
        Waiting,
        /// one has as many as it may
        MaxChannels,
        /// all channels have as much memory as they may
        Memory,
        /// neither has asked
        NotAsked,
    }

    /// What has happened.
    EventKind {
        /// a guest was attached
        GuestAttached,
        /// a guest's modules are there
        GuestReady,
        /// a guest's modules do not answer any more
        GuestAway,
        /// a guest has another name
        GuestRenamed,
        /// a guest was told to shut down or to suspend
        GuestLeaving,
        /// a guest is not there any more
        GuestGone,
        /// an operator has detached a guest
        GuestDetached,
        /// a guest is being made ready to be migrated
        GuestPreparing,
        /// a guest may be migrated
        GuestPrepared,
        /// a guest is being migrated
        GuestMigrating,
        /// a guest was migrated
        GuestDeparted,
        /// a guest is being migrated to here
        GuestArriving,
        /// a guest was not migrated, and is to take part again
        GuestReturning,
        /// it does
        GuestReturned,
        /// a channel's ends are made
        ChannelOpen,
        /// both guests use a channel
        ChannelUp,
        /// a channel could not be made
        ChannelFailed,
        /// a guest said that its peer broke the protocol
        ChannelBroken,
        /// a channel is being taken from its guests
        ChannelClosing,
        /// a guest keeps its end of a channel
        ChannelStuck,
        /// a channel is gone
        ChannelClosed,
        /// a channel of two guests broke: when they may have another one
        PairBroken,
        /// the policy was read
        PolicyLoaded,
        /// the policy could not be read
        PolicyRefused,
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use strum::IntoEnumIterator;

    use super::*;

    /// All words of a type are these and `unknown`, for people, as JSON, and read again.
    fn are<T>(words: &str)
    where
        T: IntoEnumIterator
            + Serialize
            + DeserializeOwned
            + std::fmt::Display
            + PartialEq
            + std::fmt::Debug,
    {
        let shown: Vec<_> = T::iter().map(|word| word.to_string()).collect();
        assert_eq!(shown.join(" "), format!("{words} unknown"));
        for word in T::iter() {
            let text = serde_json::to_string(&word).expect("JSON");
            assert_eq!(text, format!("\"{word}\""));
            assert_eq!(serde_json::from_str::<T>(&text).expect("a word"), word);
        }
    }

    #[test]
    fn words_that_programs_rely_on() {
        are::<Hypervisor>("qemu xen");
        are::<PolicyState>("file none last-good denied");
        are::<GuestState>(
            "attaching attached ready leaving detaching detached preparing prepared migrating \
             departed returning arriving",
        );
        are::<ChannelState>("none plugging open up closing stuck revoked");
        are::<EndState>("none up idle closed broken");
        are::<FilterKind>(
            "xdp classifier qdisc locked nftables iptables-legacy ip6tables-legacy \
             ebtables-legacy rule unreadable",
        );
        are::<ReasonCode>(
            "recovering guest policy interface network isolated address filter closing revoked \
             broken waiting max-channels memory not-asked",
        );
        are::<EventKind>(
            "guest-attached guest-ready guest-away guest-renamed guest-leaving guest-gone \
             guest-detached guest-preparing guest-prepared guest-migrating guest-departed \
             guest-arriving guest-returning guest-returned channel-open channel-up \
             channel-failed channel-broken channel-closing channel-stuck channel-closed \
             pair-broken policy-loaded policy-refused",
        );
    }

    #[test]
    fn words_of_a_newer_agent() {
        let state: GuestState = serde_json::from_str("\"sleeping\"").expect("a word");
        assert_eq!(state, GuestState::Unknown);
    }
}
