import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.storage.internals.log.LogConfig;

/** Every setting of a broker and of a topic that Kafka declares: whose, name, type, default, bounds. */
public class Settings {
    public static void main(String[] arguments) {
        print("broker", AbstractKafkaConfig.CONFIG_DEF);
        print("topic", LogConfig.configDefCopy());
    }

    static void print(String owner, ConfigDef declared) {
        for (Map.Entry<String, ConfigDef.ConfigKey> entry : declared.configKeys().entrySet()) {
            ConfigDef.ConfigKey key = entry.getValue();
            Object value = key.hasDefault() ? ConfigDef.convertToString(key.defaultValue, key.type) : "(none)";
            System.out.println(String.join("\t", owner, key.name, key.type.name(), String.valueOf(value),
                String.valueOf(key.validator)));
        }
    }
}
