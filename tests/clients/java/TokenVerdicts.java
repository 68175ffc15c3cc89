import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Scanner;
import javax.security.auth.login.AppConfigurationEntry;
import javax.security.sasl.SaslException;
import org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator;
import org.apache.kafka.common.security.oauthbearer.JwtValidatorException;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerClientInitialResponse;

/**
 * What Kafka's broker says of tokens, or of the first messages of clients.
 * Arguments: URL of the keys, expected issuer, expected audience (both may be empty). Reads lines: a token, or @ and a message in
 * hexadecimal digits. Prints a line for each: yes, the user and the seconds of its end, or the token of a message; or no and the reason.
 */
public final class TokenVerdicts {
    private TokenVerdicts() {}

    public static void main(String[] arguments) throws IOException {
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", arguments[0]);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", "/");
        Map<String, Object> config = new HashMap<>();
        config.put("sasl.oauthbearer.jwks.endpoint.url", arguments[0]);
        config.put("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000L);
        config.put("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", 100L);
        config.put("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", 10_000L);
        config.put("sasl.oauthbearer.clock.skew.seconds", 30);
        config.put("sasl.oauthbearer.scope.claim.name", "scope");
        config.put("sasl.oauthbearer.sub.claim.name", "sub");
        if (!arguments[1].isEmpty()) {
            config.put("sasl.oauthbearer.expected.issuer", arguments[1]);
        }
        config.put("sasl.oauthbearer.expected.audience", arguments[2].isEmpty() ? List.of() : List.of(arguments[2]));
        var login = new AppConfigurationEntry(
            OAuthBearerLoginModule.class.getName(), AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, Map.of());
        try (var validator = new BrokerJwtValidator(); var lines = new Scanner(System.in, StandardCharsets.US_ASCII)) {
            validator.configure(config, OAuthBearerLoginModule.OAUTHBEARER_MECHANISM, List.of(login));
            while (lines.hasNextLine()) {
                String line = lines.nextLine();
                System.out.println((line.startsWith("@") ? ofMessage(line.substring(1)) : ofToken(validator, line)).replace('\n', ' '));
            }
        }
    }

    private static String ofToken(BrokerJwtValidator validator, String line) {
        try {
            OAuthBearerToken token = validator.validate(line);
            return "yes " + token.principalName() + " " + token.lifetimeMs() / 1000;
        } catch (JwtValidatorException error) {
            return "no " + error.getMessage();
        }
    }

    private static String ofMessage(String digits) {
        try {
            return "yes " + new OAuthBearerClientInitialResponse(HexFormat.of().parseHex(digits)).tokenValue();
        } catch (SaslException | RuntimeException error) {
            return "no " + error.getMessage();
        }
    }
}
